"""Measuring continuations: toxicity, perplexity under a judge, diversity."""
