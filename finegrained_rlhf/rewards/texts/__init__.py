"""Rewards from what a text alone is worth: scorers of texts, and how their scores become rewards of segments."""
