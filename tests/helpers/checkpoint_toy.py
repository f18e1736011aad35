"""Checkpoints of a file each, for what reads run directories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from finegrained_rlhf.core.files import atomic_directory
from finegrained_rlhf.runtime.loop.checkpoints import CheckpointStore, LoopState, checksums, complete


def write_checkpoint(run: Path, step: int, text: str = "12345", **state: Any) -> Path:
    """A checkpoint as the training loop leaves it, of one file `weights`."""
    path = CheckpointStore(run / "checkpoints", keep=9).path(step)
    with atomic_directory(path) as directory:
        (directory / "weights").write_text(text)
        complete(directory, LoopState(step=step, **state), checksums(directory))
    return path
