"""Rewrites by a language model that was not trained for them: instruction, a few demonstrations, conversation."""
