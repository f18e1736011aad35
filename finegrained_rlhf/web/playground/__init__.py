"""Playground: a question, any policies, a run's reward; answers with heat maps, re-ranked in the browser as weights move."""
