"""What a configuration builds and a command runs, and a job as the configuration that it is."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from finegrained_rlhf.core.exports import public_path


def resolved_settings(value: Any) -> Any:
    """A job or its settings as JSON: dataclasses by `_target_` and fields, as YAML names them; the rest by its text.

    Args:
        value: a dataclass, a mapping, a collection or a plain value.
    """
    if is_dataclass(value) and not isinstance(value, type):
        kind = type(value)
        own = {entry.name: resolved_settings(getattr(value, entry.name)) for entry in fields(value)}
        return {"_target_": public_path(kind), **own}
    if isinstance(value, Mapping):
        return {str(key): resolved_settings(item) for key, item in value.items()}
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Collection) and not isinstance(value, bytes):
        items = [resolved_settings(item) for item in value]
        return sorted(items, key=str) if isinstance(value, set | frozenset) else items
    return str(value) if isinstance(value, Path) else repr(value)


RESERVED_KEYS = frozenset({"prepare", "settings", "overwrite", "trust"})
"""Top-level keys of a configuration that belong to what launches a job and never reach it: the steps that run before
it, free values for interpolation, whether what exists may be replaced, and which classes the reward of a run may name
beside the project's own. No job has a field of such a name, but one that decides itself what it replaces has
`overwrite`."""


@runtime_checkable
class Job(Protocol):
    """Something that a configuration describes by `_target_` and that does its work when it is run.

    Attributes:
        every_process: whether every process of a launch runs it, because it shares its work among them; else the main
            process alone does.
    """

    every_process: ClassVar[bool]

    def run(self) -> Any:
        """Do the work."""
