"""A Hugging Face cache in the Hub's own layout, made of local directories: what a machine without a connection has."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER_COMMIT = "89abcdef0123456789abcdef0123456789abcdef"


def put_into_cache(
    cache: Path, name: str, source: Path, *, commit: str = COMMIT, ref: str | None = "main", kind: str = "models"
) -> Path:
    """Store a directory as `name` at a commit, each file a link to a blob, as the Hub's client does; its snapshot."""
    place = cache / f"{kind}--{name.replace('/', '--')}"
    snapshot, blobs = place / "snapshots" / commit, place / "blobs"
    blobs.mkdir(parents=True, exist_ok=True)
    for file in sorted(path for path in source.rglob("*") if path.is_file()):
        blob = blobs / f"{commit[:8]}-{file.relative_to(source).as_posix().replace('/', '-')}"
        shutil.copyfile(file, blob)
        link = snapshot / file.relative_to(source)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    if ref is not None:
        (place / "refs").mkdir(exist_ok=True)
        (place / "refs" / ref).write_text(commit)
    return snapshot
