"""Dialogues and passages → token ids, candidates and batches."""
