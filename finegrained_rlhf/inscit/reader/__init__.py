"""Readers that answer a turn from passages: what they are given, what they are taught to say, what they said."""
