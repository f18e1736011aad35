"""Readers of the published rewriting data sets and of the project's own JSON lines, all into `RewriteExample`."""
