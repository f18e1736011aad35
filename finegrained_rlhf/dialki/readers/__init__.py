"""Readers of the published dialogue data sets and of the project's own JSON lines, all into `DialogueExample`."""
