"""Training of the knowledge identifier."""
