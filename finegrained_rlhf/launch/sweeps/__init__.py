"""Sweeps: many runs of one configuration as child processes, and the table at their end."""
