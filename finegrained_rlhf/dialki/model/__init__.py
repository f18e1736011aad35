"""The encoder with its heads, the losses and the regularization."""
