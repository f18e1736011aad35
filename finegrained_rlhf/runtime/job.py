"""A job as the configuration that it is, and the keys of a configuration that are no job's."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.exports import public_path

RESERVED_KEYS = frozenset({"prepare", "settings", "overwrite", "trust"})
"""Top-level keys of a configuration that belong to what launches a job and never reach it: the steps that run before
it, free values for interpolation, whether what exists may be replaced, and which classes the reward of a run may name
beside the project's own. No job has a field of such a name, but one that decides itself what it replaces has
`overwrite`."""


def as_config(job: Any) -> Any:
    """A job, or its settings, as the configuration that builds it: its fields, and `_target_` for every object.

    Of an object that is no dataclass the public attributes with plain values are taken.
    """
    if job is None or isinstance(job, bool):
        return job
    for plain_type in (int, float, str):  # of numpy's numbers and the like, the value
        if isinstance(job, plain_type):
            return plain_type(job)
    if isinstance(job, Path):
        return str(job)
    if isinstance(job, Mapping):
        return {str(key): as_config(value) for key, value in job.items()}
    if isinstance(job, list | tuple | set | frozenset):
        return [as_config(value) for value in (sorted(job) if isinstance(job, set | frozenset) else job)]
    target = {"_target_": public_path(type(job))}
    if dataclasses.is_dataclass(job):
        return target | {field.name: as_config(getattr(job, field.name)) for field in dataclasses.fields(job)}
    plain = {key: value for key, value in getattr(job, "__dict__", {}).items() if not key.startswith("_")}
    return target | {key: as_config(value) for key, value in plain.items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(_is_plain(item) for item in value.values())
    if isinstance(value, list | tuple):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, bool | int | float | str | Path)
