"""Rewriting questions with a trained policy."""
