"""Measurements. Nothing in the packages imports from here."""
