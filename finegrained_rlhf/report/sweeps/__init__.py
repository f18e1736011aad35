"""Sweeps: their table, plot and page."""
