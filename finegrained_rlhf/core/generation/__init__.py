"""Text in, text out: the one protocol for language models that agents, simulated users and judges ask."""
