"""Edits of users as span feedback: what was learnt at use time can be trained in."""
