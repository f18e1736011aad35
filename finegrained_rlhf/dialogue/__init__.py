"""What systems that work on dialogues and passages share: turns, passages, knowledge, and the marks between them."""
