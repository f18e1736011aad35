"""Tests of the difference between two systems over the same questions."""
