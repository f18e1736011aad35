"""Weights of models that exist: copied from a checkpoint, and how frozen ones are stored."""
