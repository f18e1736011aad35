"""Scores, groups, figures and the lexical baseline."""
