"""Longformer with banded attention, its heads, and tiny ones."""
