"""Which keys a configuration may have, and of what type: every mapping with `_target_` against its class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.launch.checks import types
from finegrained_rlhf.launch.checks.declared import declared, find, module_exists, source
from finegrained_rlhf.launch.checks.nearest import keys_of, nearest
from finegrained_rlhf.runtime.job import RESERVED_KEYS

_HYDRAS = ("_target_", "_partial_", "_args_", "_convert_", "_recursive_")
_OURS = ("finegrained_rlhf", "reward_models")
MISSING = "???"


def keys_of_job(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a configuration that reach its job: not the reserved ones, but `overwrite` where the job has it."""
    target = config.get("_target_")
    declaration = declared(target) if isinstance(target, str) else None
    own = set() if declaration is None else {"overwrite"} & declaration.fields.keys()
    return {key: value for key, value in config.items() if key not in RESERVED_KEYS or key in own}


def check_keys(config: Mapping[str, Any], key: str = "") -> None:
    """Refuse keys that nothing reads, keys that are missing, and values of another type than declared.

    Args:
        config: plain containers.
        key: dotted, under which it stands.

    Raises:
        ConfigError: the first of them, in one line.
    """
    for found in problems(config, key):
        raise ConfigError(found)


def problems(config: Mapping[str, Any], key: str = "") -> Iterator[str]:
    """What is wrong with the keys of a configuration and of all that is in it, one line each."""
    target = config.get("_target_")
    if isinstance(target, str):
        if (unknown := unknown_target(target)) is not None:
            yield f"{_dotted(key, '_target_')}: {unknown}"
            return
        yield from _of_class(config, key, target)
    for name, value in config.items():
        yield from _within(value, _dotted(key, name))


def _within(value: Any, key: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        yield from problems(value, key)
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from _within(item, f"{key}[{place}]")


def _of_class(config: Mapping[str, Any], key: str, target: str) -> Iterator[str]:
    declaration = declared(target)
    if declaration is None:
        return
    where = f"{key}: " if key else ""
    for name in config:
        if name not in declaration.fields and name not in _HYDRAS and not declaration.open:
            known = [*declaration.fields, *keys_of(config)]
            near = nearest(str(name), [other for other in known if other.partition(".")[0] in declaration.fields])
            yield f"{where}unknown key {str(name)!r}" + (f"; did you mean {' or '.join(near)}?" if near else "")
    for name, field in declaration.fields.items():
        if name not in config:
            if field.required and "_args_" not in config:
                yield f"{where}missing key {name!r}"
        elif config[name] != MISSING and (found := types.problem(_dotted(key, name), config[name], field)):
            yield found


def unknown_target(target: str) -> str | None:
    """Why a `_target_` of the project cannot be one; None where its source has it, or where the import must say."""
    module, _, name = target.rpartition(".")
    if target.partition(".")[0] not in _OURS or find(target) is not None:
        return None
    if source(module) is not None:
        return f"{module} has no {name}"
    return None if module_exists(module) else f"there is no module {module}"


def _dotted(key: str, name: Any) -> str:
    return f"{key}.{name}" if key else str(name)
