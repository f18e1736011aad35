"""Whether the files that a configuration names are there, and whether what it writes can be written; changes nothing.

What a job reads and writes, the annotations of its class say (`InputFile`, `OutputFile`, …).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.errors import ConfigError, FineGrainedError
from finegrained_rlhf.core.fields import Place, places
from finegrained_rlhf.core.hub import HubKind, HubName, named_on_hub, require_reachable
from finegrained_rlhf.core.markers import Reads, Writes
from finegrained_rlhf.launch.checks.schema import UNSET
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory

_STANDARD = "-"


class Made:
    """What earlier steps will have made when a job runs.

    Args:
        paths: files and directories that they write.
    """

    def __init__(self, paths: Iterable[str] = ()) -> None:
        self._paths = [_absolute(path) for path in paths]

    def add(self, paths: Iterable[str]) -> None:
        """Add what a step writes."""
        self._paths += map(_absolute, paths)

    def __contains__(self, path: str) -> bool:
        """Whether a path is one of them, lies in one, holds one, or goes with one (`a.outputs.jsonl` with `a.json`)."""
        asked = _absolute(path)
        return any(
            asked == own
            or asked in own.parents
            or own in asked.parents
            or (own.suffix and asked.parent == own.parent and asked.name.startswith(f"{own.stem}."))
            for own in self._paths
        )


def check_inputs(config: Mapping[str, Any], made: Made | None = None) -> None:
    """Refuse inputs that are not there.

    Args:
        config: plain containers, resolved.
        made: what steps before the job will have made.

    Raises:
        ConfigError: the first of them, in one line.
    """
    for problem in missing_inputs(config, made):
        raise ConfigError(problem)


def missing_inputs(config: Mapping[str, Any], made: Made | None = None) -> Iterator[str]:
    """The inputs that are not there, one line each; arguments as `check_inputs`."""
    for place, path in inputs(config):
        if path in (_STANDARD, UNSET) or exists(place.key, path) or (made is not None and path in made):
            continue
        if (on_hub := _on_hub(place, path)) is None:
            yield f"{place.key}: {path}: no such file or directory"
            continue
        try:
            kind, name = on_hub
            require_reachable(name, kind)
        except FineGrainedError as error:
            yield f"{place.key}: {error}"


def check_outputs(config: Mapping[str, Any]) -> None:
    """Refuse outputs that cannot be written, or that would replace an input, a part of one, or a file of a run.

    Raises:
        ConfigError: the first of them, in one line.
    """
    read = list(inputs(config))
    for place, path in outputs(config):
        directory = _is_directory(place)
        check_writable(place.key, path, directory)
        if directory or path == _STANDARD:
            continue
        for other, source in read:
            if source != _STANDARD and _absolute(path) == _absolute(source):
                raise ConfigError(f"{place.key}: {path} is also {other.key}, which it would replace; name another file")
        _check_replaced(place.key, path, [source for _, source in read])


def _check_replaced(key: str, path: str, sources: Iterable[str]) -> None:
    """Refuse a file that is there and that a run, or a directory which is read, cannot do without."""
    target = Path(path)
    if not target.is_file():
        return
    target = target.resolve()
    run = next((run for run in map(RunDirectory, target.parents) if run.has_begun()), None)
    if run is not None:
        if run.owns(target):
            raise ConfigError(f"{key}: {path} is a file of the run in {run.path}; name another file")
    elif any(Path(source).is_dir() and Path(source).resolve() in target.parents for source in sources):
        raise ConfigError(f"{key}: {path} is there, in a directory that is read; name another file")


def inputs(config: Mapping[str, Any]) -> Iterator[tuple[Place, str]]:
    """The keys that name what is read, each with its paths."""
    for place in places(config):
        if place.mark(Reads) is not None:
            yield from ((place, path) for path in place.paths)


def outputs(config: Mapping[str, Any]) -> Iterator[tuple[Place, str]]:
    """The keys that name what is written, each with its paths."""
    for place in places(config):
        if place.mark(Writes) is not None:
            yield from ((place, path) for path in place.paths)


def _is_directory(place: Place) -> bool:
    written = place.mark(Writes)
    return written is not None and written.directory


def _on_hub(place: Place, path: str) -> tuple[HubKind, HubName] | None:
    """What a path names on the Hub, where its class takes such a name."""
    read = place.mark(Reads)
    if read is None or read.hub is None:
        return None
    named = named_on_hub(place.holder, place.name, path)
    return named if named is not None and named[0] == read.hub else None


def exists(key: str, path: str) -> bool:
    """Whether a path is there.

    Raises:
        ConfigError: it cannot be one.
    """
    try:
        return Path(path).exists()
    except OSError as error:
        raise ConfigError(f"{key}: {path}: {(error.strerror or str(error)).lower()}") from None


def check_writable(key: str, path: str, directory: bool) -> None:
    """Refuse a path that cannot be written as a file, or as a directory.

    Raises:
        ConfigError: why not.
    """
    if path in (_STANDARD, UNSET):
        return
    if not path:
        raise ConfigError(f"{key}: expected a path, got an empty text")
    target = Path(path)
    try:
        if directory and target.exists() and not target.is_dir():
            raise ConfigError(f"{key}: {path} is a file; expected a directory")
        if not directory and target.is_dir():
            raise ConfigError(f"{key}: {path} is a directory; expected a file")
        above = next(place for place in (target, *target.absolute().parents) if place.exists())
        if not above.is_dir() and above != target:
            raise ConfigError(f"{key}: {path} cannot be made: {above} is a file")
    except OSError as error:  # a name too long, a directory that may not be searched
        raise ConfigError(f"{key}: {path}: {(error.strerror or str(error)).lower()}") from None
    place = above if above.is_dir() else above.parent
    if not os.access(place, os.W_OK | os.X_OK) or str(place.resolve()).startswith("/proc"):
        raise ConfigError(f"{key}: {path} cannot be written: no permission to write in {place}")


def _absolute(path: str) -> Path:
    return Path(os.path.abspath(path))
