"""What several processes share out among them: gradients, moments and weights."""
