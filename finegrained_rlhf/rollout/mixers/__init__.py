"""Decoding that other models or a list of words steer: what changes a policy's logits before a token is drawn."""
