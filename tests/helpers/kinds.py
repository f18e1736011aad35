"""Command lines of one kind: the same script, the same keys and the same options of groups."""

from __future__ import annotations

from collections.abc import Iterable

from finegrained_rlhf.launch.configurations import conf_directories


def kind_of(script: str | None, arguments: Iterable[object]) -> tuple[str | None, ...]:
    """What command lines of a kind have in common; they differ in the values of keys alone."""
    words = (str(argument).partition("=") for argument in arguments)
    return script, *sorted(key + (value if is_group(key) else "") for key, _, value in words)


def is_group(key: str) -> bool:
    """Whether a key chooses an option of a group."""
    return any((directory / key).is_dir() for directory in conf_directories())
