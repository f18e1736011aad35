"""Policies that learn from the best of their own samples, and what there is to choose from."""
