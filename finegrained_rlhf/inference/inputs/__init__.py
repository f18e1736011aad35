"""From what was given to the prompts that a policy reads."""
