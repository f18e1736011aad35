"""Bidirectional encoders: how one is opened, and tokens that mark parts of its input."""
