"""Training of the knowledge identifier and its baselines, and which classes a configuration asks for."""
