"""Folders of documents with planted facts, and questions about them; what a folder is about is a style."""
