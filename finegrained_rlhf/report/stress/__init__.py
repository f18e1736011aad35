"""The stress test of a reward: its job and its page."""
