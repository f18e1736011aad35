"""Checks of configuration, inputs, machine and one training step, each with its remedy."""
