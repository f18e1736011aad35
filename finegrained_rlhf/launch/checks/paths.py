"""Whether the files that a configuration names are there, and whether what it writes can be written; changes nothing.

What a job reads and writes is told by the names of its keys, which mean one thing in the whole project. A key counts
where the class says that it takes text; a custom class's own keys are its own affair.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.errors import ConfigError, FineGrainedError
from finegrained_rlhf.core.fields import Reads, marker, takes_text
from finegrained_rlhf.core.hub.names import HubKind, HubName, named_on_hub
from finegrained_rlhf.core.hub.snapshots import require_reachable
from finegrained_rlhf.launch.checks.schema import UNSET, setting_of

_READ = frozenset(
    "data validation_data path adapter model index corpus checkpoint outputs input labels validation_labels tokenizer "
    "run encoder documents document dialki seen_in qrels match rewrites ca_file wheels judge_model expert "
    "anti_expert exports annotations qualification tasks before drift predictions retrieved train pages store "
    "ratings inputs responses selection known_passages conversations".split()
)
_WRITTEN_DIRECTORIES = ("output_dir", "cache", "runs", "scai_runs")
_WRITTEN_FILES = ("output", "results", "cache_file", "per_question", "shared_task", "errors")
_STANDARD = "-"
_RESUME_WORDS = ("auto", "never")
_HUB_KEYS: Mapping[str, HubKind] = {"ModelPath": "model", "DataPath": "dataset"}


class Made:
    """What earlier steps will have made when a job runs.

    Args:
        paths: files and directories that they write.
    """

    def __init__(self, paths: Iterable[str] = ()) -> None:
        self._paths = [_absolute(path) for path in paths]

    def add(self, step: Mapping[str, Any]) -> None:
        """Add what a step (`{script, args}` or `{job}`, `unless`) writes, by the names of its keys."""
        words = [str(argument).partition("=") for argument in step.get("args") or ()]
        named = [(key.lstrip("+"), value) for key, _, value in words] + list((step.get("job") or {}).items())
        written = (*_WRITTEN_DIRECTORIES, *_WRITTEN_FILES)
        self._paths += [_absolute(str(value)) for key, value in named if key in written]
        self._paths += [_absolute(str(step["unless"]))] if step.get("unless") else []

    def __contains__(self, path: str) -> bool:
        """Whether a path is one of them, lies in one, or holds one."""
        asked = _absolute(path)
        return any(asked == own or asked in own.parents or own in asked.parents for own in self._paths)


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
    on_hub = dict(_on_hub(config))
    for key, path in inputs(config):
        if path not in (_STANDARD, UNSET) and not _exists(key, path) and (made is None or path not in made):
            if (key, path) not in on_hub:
                yield f"{key}: {path}: no such file or directory"
                continue
            try:
                kind, name = on_hub[key, path]
                require_reachable(name, kind)
            except FineGrainedError as error:
                yield f"{key}: {error}"


def check_outputs(config: Mapping[str, Any]) -> None:
    """Refuse outputs that cannot be written, or that would replace an input.

    Raises:
        ConfigError: the first of them, in one line.
    """
    read = list(inputs(config))
    for key, path, directory in outputs(config):
        check_writable(key, path, directory)
        for other, source in read:
            if not directory and _STANDARD not in (path, source) and _absolute(path) == _absolute(source):
                raise ConfigError(f"{key}: {path} is also {other}, which it would replace; name another file")


def _on_hub(config: Mapping[str, Any], key: str = "") -> Iterator[tuple[tuple[str, str], tuple[HubKind, HubName]]]:
    """Dotted keys and values that have the form of a Hub name, where the class takes one; with what they name."""
    for name, value, where, holder in texts(config, key):
        kind = _HUB_KEYS.get(annotation(holder, name))
        found = named_on_hub(holder, name, value) if kind is not None and not _exists(where, value) else None
        if found is not None and found[0] == kind:
            yield (where, value), found


def inputs(config: Mapping[str, Any], key: str = "") -> Iterator[tuple[str, str]]:
    """The dotted keys that name what is read, and their paths."""
    for name, value, where, holder in texts(config, key):
        model = annotation(holder, name) == "ModelPath"
        if name == "model" and "remote" in holder:
            continue  # beside an endpoint: what that calls it
        if name in _READ or model or (name == "resume" and value not in _RESUME_WORDS):
            yield where, value


def outputs(config: Mapping[str, Any], key: str = "") -> Iterator[tuple[str, str, bool]]:
    """The dotted keys that name what is written, their paths, and whether each is a directory."""
    for name, value, where, _ in texts(config, key):
        if name in _WRITTEN_DIRECTORIES or name in _WRITTEN_FILES:
            yield where, value, name in _WRITTEN_DIRECTORIES


def texts(config: Mapping[str, Any], key: str = "") -> Iterator[tuple[str, str, str, Mapping[str, Any]]]:
    """Name, text and dotted key of what the project's classes take as text or texts, and the mapping it stands in."""
    for name, value in config.items():
        where = f"{key}.{name}" if key else str(name)
        if annotation(config, str(name)):
            values = value if isinstance(value, list) else list(value.values()) if _plain(value) else [value]
            yield from ((str(name), text, where, config) for text in values if isinstance(text, str))
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, Mapping):
                yield from texts(part, where)


def annotation(config: Mapping[str, Any], name: str) -> str:
    """What kind of text the class of a mapping takes by a name: `str` or one of `_HUB_KEYS`; empty where none."""
    setting = setting_of(config, name)
    if setting is None:
        return ""
    read = marker(setting.annotation, Reads)
    if read is not None and read.hub is not None:
        return {"model": "ModelPath", "dataset": "DataPath"}[read.hub]
    return "str" if takes_text(setting.annotation) else ""


def _plain(value: Any) -> bool:
    return isinstance(value, Mapping) and "_target_" not in value


def _exists(key: str, path: str) -> bool:
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
