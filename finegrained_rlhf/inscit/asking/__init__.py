"""Answering questions from a folder of documents: evidence, readers, citations, sessions and their measures."""
