"""Predictions for INSCIT, and how good they are."""
