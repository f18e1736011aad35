"""What an index directory is of: the retriever's kind, the settings and the corpus, and whether it is finished.

Knows two JSON files: `building.json` stands from the first moment on, `index.json` takes its place when all is there.
Does not know what else an index is made of.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import read_json, write_json
from finegrained_rlhf.retrieval.corpus import Corpus, CorpusScan

BUILDING, FINISHED = "building.json", "index.json"


def begin_index(
    directory: Path, kind: str, settings: Mapping[str, Any], corpus: Corpus, progress: bool = True
) -> CorpusScan | None:
    """Claim a directory for an index, or go on with the one that was begun there.

    Args:
        directory: made where it is absent.
        kind: of the retriever.
        settings: all that the index depends on, as JSON.
        corpus: is read once and checked, unless it is unchanged since it was.
        progress: show a bar.

    Returns:
        What is known of the corpus; None where the index is finished already.

    Raises:
        ConfigError: the directory holds an index of another kind, with other settings, or of another corpus.
        DataError: a broken or empty corpus.
    """
    found = _read(directory)
    if found is not None:
        _check(directory, found, kind, settings)
    known = None if found is None else CorpusScan.from_json(found["corpus"])
    scan = corpus.scan(known, progress)
    if known is not None and known.fingerprint != scan.fingerprint:
        raise ConfigError(f"{directory}: holds an index of another corpus than {corpus.path}; take another directory")
    if (directory / FINISHED).is_file():
        return None
    write_json(directory / BUILDING, {"kind": kind, "settings": dict(settings), "corpus": scan.to_json()})
    return scan


def finish_index(directory: Path, details: Mapping[str, Any]) -> None:
    """Mark an index that was begun as finished, and keep what else opening it needs to know."""
    write_json(directory / FINISHED, {**read_json(directory / BUILDING), "details": dict(details)})
    (directory / BUILDING).unlink()


def open_index(directory: Path, kind: str, settings: Mapping[str, Any]) -> tuple[CorpusScan, dict[str, Any]]:
    """The corpus and the details of a finished index.

    Raises:
        DataError: there is no index, or it is not finished.
        ConfigError: it is of another kind or was built with other settings.
    """
    found = _read(directory)
    if found is None:
        raise DataError(f"no index here (expected {FINISHED}); scripts/build_index.py makes one", file=directory)
    _check(directory, found, kind, settings)
    if not (directory / FINISHED).is_file():
        raise DataError("the index is not finished; scripts/build_index.py goes on with it", file=directory)
    return CorpusScan.from_json(found["corpus"]), found["details"]


def _read(directory: Path) -> dict[str, Any] | None:
    """What is written of an index; None where there is nothing."""
    for name in (FINISHED, BUILDING):
        if (directory / name).is_file():
            found = read_json(directory / name)
            if not isinstance(found, dict) or not {"kind", "settings", "corpus"} <= found.keys():
                raise DataError(
                    "not written by this project: expected kind, settings and corpus", file=directory / name
                )
            return found
    return None


def _check(directory: Path, found: Mapping[str, Any], kind: str, settings: Mapping[str, Any]) -> None:
    if found["kind"] != kind:
        raise ConfigError(f"{directory}: holds an index of the kind {found['kind']}, expected {kind}")
    built = found["settings"]
    for name in sorted(built.keys() | settings.keys()):
        if built.get(name) != settings.get(name):
            raise ConfigError(
                f"{directory}: the index was built with {name} = {built.get(name)!r}, these settings have "
                f"{settings.get(name)!r}; take the same settings or build it anew in another directory"
            )
