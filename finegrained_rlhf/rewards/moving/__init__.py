"""Weights that move: by step (schedule), by response (gates), and by what training reaches (constraints)."""
