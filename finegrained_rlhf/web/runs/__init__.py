"""Runs, live: every run below a directory, a page a run, runs side by side."""
