"""Scorers that ask a service, or repeat what one said before; no score is ever made up."""
