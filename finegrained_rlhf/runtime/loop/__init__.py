"""The training loop: steps, validation, checkpoints, exact resume."""
