"""What PRELUDE is played on: rounds of contexts, from files of them or made of documents."""
