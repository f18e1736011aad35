"""A reward model with a bottleneck: an answer earns what the question needs of its passages, and nothing else."""
