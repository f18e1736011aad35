"""Playground: a question, policies and a run's reward; answers as heat maps, ranked anew as weights move."""
