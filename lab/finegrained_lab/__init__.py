"""The laboratory: generated worlds, experiments on them and on public data, and the tables that they make."""
