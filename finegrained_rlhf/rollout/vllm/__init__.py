"""vLLM as rollout engine of decoder-only policies: servers that it runs as, or in this process."""
