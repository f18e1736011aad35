"""Simulated annotators of projects: people who err at known rates."""
