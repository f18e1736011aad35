"""Agents that write drafts and learn from what users make of them, each a class that reads like its algorithm."""
