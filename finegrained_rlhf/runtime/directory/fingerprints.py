"""Digests of the files that a configuration names: the same content has the same digest, wherever and whenever it lies.

Knows files, the layout of runs, and what the annotations of classes say of a key. Knows no key by its name.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.errors import FineGrainedError
from finegrained_rlhf.core.fields import Place, filled, places
from finegrained_rlhf.core.hub import commit_of_snapshot, named_on_hub, snapshot
from finegrained_rlhf.core.markers import Reads
from finegrained_rlhf.runtime.job import RESERVED_KEYS

WHOLE_BYTES = 1 << 24
"""Files up to this size (16 MiB) are read as a whole; of larger ones the size, both ends and 256 blocks are."""
_END_BYTES, _BLOCKS, _BLOCK_BYTES = 1 << 20, 256, 1 << 12
_LEFT_OUT = (
    "made.json",
    "source.json",
    "export.json",
    "provenance.json",
    "run.json",
    "checkpoints",
    "samples",
    "tensorboard",
    "wandb",
)


def fingerprint(path: str | Path) -> str:
    """A digest of a file, or of all files of a directory with their names; of a run's directory, of its exported model.

    Independent of time stamps and places. Of a file above `WHOLE_BYTES` it sees the size, the first and last MiB (so
    the header of a safetensors file) and 256 blocks spread evenly: two weights files that were trained differently
    differ there, a change of a few bytes may go unseen.

    Returns:
        The first 16 hexadecimal digits of a SHA-256.

    Raises:
        OSError: it is absent or cannot be read.
    """
    path = Path(path)
    digest = hashlib.sha256()
    if path.is_dir():
        for name in ("policy", "model"):
            if (path / name / "config.json").is_file():
                path = path / name
                break
        for file in sorted(_files(path)):
            digest.update(f"{file.relative_to(path).as_posix()}\0{_file(file)}\0".encode())
    else:
        digest.update(_file(path).encode())
    return digest.hexdigest()[:16]


def _files(directory: Path) -> Iterator[Path]:
    for entry in os.scandir(directory):
        if entry.name.startswith(".") or entry.name in _LEFT_OUT:
            continue
        if entry.is_dir():
            yield from _files(Path(entry.path))
        else:
            yield Path(entry.path)


def _file(path: Path) -> str:
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with open(path, "rb") as stream:
        if size <= WHOLE_BYTES:
            digest.update(stream.read())
        else:
            digest.update(stream.read(_END_BYTES))
            for block in range(_BLOCKS):
                stream.seek(size * block // _BLOCKS)
                digest.update(stream.read(_BLOCK_BYTES))
            stream.seek(size - _END_BYTES)
            digest.update(stream.read())
    return digest.hexdigest()


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested mappings and lists by dotted key, `reward.components.relevance.path` or `data[0]`."""
    if isinstance(value, Mapping) and value:
        for name, child in value.items():
            yield from leaves(child, f"{key}.{name}" if key else str(name))
    elif isinstance(value, Sequence) and not isinstance(value, str) and value:
        for number, child in enumerate(value):
            yield from leaves(child, f"{key}[{number}]")
    else:
        yield key, value


def inputs_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Every file, directory and Hub name that a configuration names and that exists, what it writes left out.

    Args:
        config: plain containers.

    Returns:
        `{"path": …, "sha256": …}` by dotted key, with `commit` for what comes from the Hub.
    """
    inputs: dict[str, Any] = {}
    config = filled({name: part for name, part in config.items() if name not in RESERVED_KEYS})
    known = {place.key: place for place in places(config)}
    for key, value in leaves(config):
        place = _place_of(key, known)
        if not isinstance(value, str) or (place is not None and place.is_harmless):
            continue
        read = None if place is None else place.mark(Reads)
        try:
            if os.path.isfile(value) or ((read is not None or os.sep in value) and os.path.isdir(value)):
                inputs[key] = {"path": value, "sha256": fingerprint(value)}
            elif place is not None and read is not None and (on_hub := named_on_hub(place.holder, place.name, value)):
                directory = snapshot(on_hub[1], on_hub[0])
                inputs[key] = {
                    "path": value,
                    "commit": commit_of_snapshot(directory),
                    "sha256": fingerprint(directory),
                }
        except (OSError, ValueError, FineGrainedError):  # what reads it says why it cannot be read
            continue
    return inputs


def content_version(config: Mapping[str, Any]) -> str:
    """A digest of what a configuration says that decides results, and of the files that it names, wherever they lie.

    Args:
        config: plain containers.

    Returns:
        The first 16 hexadecimal digits of a SHA-256.
    """
    config, inputs = filled(config), inputs_of(config)
    known = {place.key: place for place in places(config)}
    content = {
        key: inputs[key]["sha256"] if key in inputs else value
        for key, value in leaves(config)
        if (place := _place_of(key, known)) is None or not place.is_harmless
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _place_of(key: str, known: Mapping[str, Place]) -> Place | None:
    """What holds a leaf: itself, or the list or mapping of texts that it is in."""
    while key not in known and key:
        key = key[: max(key.rfind("."), key.rfind("["), 0)]
    return known.get(key)
