"""Which version of the code made a result."""

from __future__ import annotations

import subprocess
from pathlib import Path


def commit_of(directory: Path) -> str:
    """The git commit that `directory` is at, with `-dirty` where tracked files differ; `unknown` outside git."""
    try:
        run = ["git", "-C", str(directory), "describe", "--always", "--abbrev=12", "--dirty", "--exclude=*"]
        return subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
