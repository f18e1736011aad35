"""transformers without progress bars and load reports: while a command runs, and while a model is opened or saved.

A command shows its own progress, and what is missing or unexpected in a model is checked where it is opened.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_within = 0
_before = (0, False)


def silence_transformers() -> None:
    """For the rest of this process; imports nothing, since transformers reads the environment when it is imported.

    What the user has set in the environment stays.
    """
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    if "transformers.utils.logging" in sys.modules:
        _silence()


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Within it; the user's settings return when the last thread has left it: checkpoints are written in their own."""
    from transformers.utils import logging

    global _within, _before
    with _lock:
        if _within == 0:
            _before = logging.get_verbosity(), logging.is_progress_bar_enabled()
            _silence()
        _within += 1
    try:
        yield
    finally:
        with _lock:
            _within -= 1
            if _within == 0:
                verbosity, bars = _before
                logging.set_verbosity(verbosity)
                if bars:
                    logging.enable_progress_bar()


def _silence() -> None:
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
