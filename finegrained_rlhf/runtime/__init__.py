"""Floor 2: run directory, checkpoints and resume, metric sinks, processes and the loop that every trainer shares."""
