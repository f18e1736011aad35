"""Passages by their ids, at random, of corpora that do not fit into memory."""
