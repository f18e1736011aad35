"""Finding passages for a turn: what is searched for, ranked lists, and what a dense retriever learns from."""
