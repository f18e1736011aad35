"""Evaluation of found knowledge by group, its figures and the lexical baseline; knowledge found for a whole file."""
