"""Everything that only a GPU can show, by one command: `python -m benchmarks.gpu out=DIR` (see docs/benchmarks.md)."""
