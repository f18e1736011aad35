"""What a test waits for in processes that it cannot join."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def alive(process: int) -> bool:
    """Whether a process runs; one that nobody has waited for yet has ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(holds: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    """Wait until something holds.

    Raises:
        AssertionError: it does not in so many seconds; `what` says what is wrong then.
    """
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
