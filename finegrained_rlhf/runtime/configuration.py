"""A configuration as JSON: what a job was set to, defaults included, for the files that it writes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

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
