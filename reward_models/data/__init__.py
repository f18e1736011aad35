"""From feedback records to examples: labels, pairs, inputs."""
