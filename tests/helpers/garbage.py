"""Rare garbage collection: where much is imported, Python's own settings take a fifteenth of the time."""

from __future__ import annotations

import gc


def collect_rarely() -> None:
    """Leave out of every collection what is there now, and collect rarely; a forked process inherits both."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 1_000)
