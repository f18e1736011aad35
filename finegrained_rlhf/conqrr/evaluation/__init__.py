"""Rewrites measured by retrieval."""
