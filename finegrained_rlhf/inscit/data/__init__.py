"""Conversations of INSCIT: records, files, and what a file holds in numbers."""
