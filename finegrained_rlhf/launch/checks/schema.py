"""Whether a configuration is what its classes take: pydantic over their own annotations, strictly, mapping by mapping.

No text counts as a number, a whole number may stand for a number, a list for a tuple; NaN and infinity stand for
nothing. Where a class of the project is declared, a mapping with `_target_` is expected. What is wrong is one line.
"""

from __future__ import annotations

import inspect
import json
import math
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import (
    MISSING,
    TARGET,
    Setting,
    is_ours,
    items_of,
    named_class,
    problem_of_value,
    settings_of,
    stated,
    takes_any,
)
from finegrained_rlhf.core.markers import Seed, advice_on, members, plain_type
from finegrained_rlhf.launch.checks.nearest import keys_of, nearest
from finegrained_rlhf.runtime.job import RESERVED_KEYS

UNSET = "???"
"""What stands in a configuration for a value that must be given."""
_HYDRAS = ("_target_", "_partial_", "_args_", "_convert_", "_recursive_")
_SEEDS = ("seed", "seeds")
_PLAIN = (int, float, str, bool)
_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "null"}
_SEVERAL = {int: "whole numbers", float: "numbers", str: "texts", bool: "true or false"}


class Part:
    """Marks a mapping that an object of a class is built from.

    Args:
        kind: the class.
    """

    def __init__(self, kind: type) -> None:
        self.name = kind.__name__


def keys_of_job(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a configuration that reach its job: not the reserved ones, but `overwrite` and
    `trust` where the job has them.
    """
    kind = _class(config.get(TARGET))
    own = set() if kind is None else {"overwrite", "trust"} & settings_of(kind).keys()
    return {key: value for key, value in config.items() if key not in RESERVED_KEYS or key in own}


def check_keys(config: Mapping[str, Any], key: str = "") -> None:
    """Refuse keys that nothing reads, keys that are missing, and values that their class does not take.

    Args:
        config: plain containers.
        key: dotted, under which it stands.

    Raises:
        ConfigError: the first of them, in one line.
    """
    for problem in problems(config, key):
        raise ConfigError(problem)


def problems(config: Mapping[str, Any], key: str = "") -> Iterator[str]:
    """What is wrong with the keys of a configuration and of all that is in it, one line each."""
    target = config.get(TARGET)
    if isinstance(target, str):
        if (unknown := unknown_target(target)) is not None:
            yield f"{_dotted(key, TARGET)}: {unknown}"
            return
        if (kind := _class(target)) is not None:
            yield from _of_class(config, key, kind)
    for name, value in config.items():
        yield from _within(value, _dotted(key, name))


def _within(value: Any, key: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        yield from problems(value, key)
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from _within(item, f"{key}[{place}]")


@cache
def _class(target: Any) -> Any:
    """What a `_target_` names; None where it is no name, or its import must say what is wrong."""
    try:
        return named_class(target) if isinstance(target, str) and "." in target else None
    except Exception:  # whatever a user's module does while it is imported
        return None


def problem_of_seed(key: str, value: Any) -> str | None:
    """What is wrong with a seed, or with a list of seeds; null is none."""
    for seed in value if isinstance(value, list) else [value]:
        if seed is not None and (type(seed) is not int or problem_of_value(seed, Seed) is not None):
            return f"{key}: expected a whole number from 0 to 2^63 - 1, got {shown(seed)}"
    return None


def unknown_target(target: str) -> str | None:
    """Why a `_target_` of the project cannot be one; None where it can, or the import must say."""
    if not is_ours(target):
        return None
    module, _, name = target.rpartition(".")
    try:
        named_class(target)
    except ModuleNotFoundError as error:
        return f"there is no module {module}" if f"{module}.".startswith(f"{error.name}.") else None
    except AttributeError:
        return f"{module} has no {name}"
    except ImportError:
        return None
    return None


def _of_class(config: Mapping[str, Any], key: str, kind: Any) -> Iterator[str]:
    settings, where = settings_of(kind), f"{key}: " if key else ""
    for name in config:
        if name not in settings and name not in _HYDRAS and not takes_any(kind):
            known = [*settings, *keys_of(config)]
            near = nearest(str(name), [other for other in known if other.partition(".")[0] in settings])
            yield f"{where}unknown key {str(name)!r}" + (f"; did you mean {' or '.join(near)}?" if near else "")
    refused = _refused(kind, {name: config[name] for name in settings if config.get(name, UNSET) != UNSET})
    for name, setting in settings.items():
        if name not in config:
            if setting.default is MISSING and not {"_args_", "_partial_"} & config.keys():
                yield f"{where}missing key {name!r}"
        elif config[name] != UNSET and (problem := _problem(_dotted(key, name), config[name], setting, refused)):
            yield problem


def _problem(key: str, value: Any, setting: Setting, refused: Mapping[str, set[Any]]) -> str | None:
    """What is wrong with a key's value, in one line; None where nothing is."""
    name = key.rpartition(".")[2]
    if name in refused:
        inner = items_of(setting.annotation)
        wrong = [entry for entry in value if entry in refused[name]] if isinstance(value, dict) and inner else []
        for entry in wrong[:1]:
            return f"{key}.{entry}: expected {words(inner)}, got {shown(value[entry])}{_hint(value[entry], inner)}"
        return f"{key}: expected {words(setting.annotation)}, got {shown(value)}{_hint(value, setting.annotation)}"
    if name in _SEEDS and (problem := problem_of_seed(key, value)) is not None:
        return problem
    if (problem := problem_of_value(value, setting.annotation)) is not None:
        return stated(key, problem)
    return _without_target(key, value, setting.annotation)


def _refused(kind: Any, values: Mapping[str, Any]) -> dict[str, set[Any]]:
    """Which values pydantic does not take: names, and the places in each that it names."""
    from pydantic import ValidationError

    held = {name: value for name, value in values.items() if _is_plain(value)}
    try:
        _model(kind).validate_json(json.dumps(held))
    except ValidationError as error:
        by_name: dict[str, set[Any]] = {}
        for one in error.errors(include_url=False, include_context=False, include_input=False):
            name, *places = one["loc"] or ("",)
            by_name.setdefault(str(name), set()).update(places)
        return by_name
    return {}


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False  # an object of Python's own: not from a command line
    return True


@cache
def _model(kind: Any) -> Any:
    """A type of pydantic's for the values that a class takes."""
    from pydantic import ConfigDict, TypeAdapter, with_config
    from typing_extensions import TypedDict

    fields = {name: json_type(setting.annotation) for name, setting in settings_of(kind).items()}
    made = TypedDict("Values", fields, total=False)  # type: ignore[misc,operator]
    settings = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True)
    return TypeAdapter(with_config(settings)(made))


def json_type(annotation: Any) -> Any:
    """A type of values as JSON writes them, which pydantic knows; Any for what it cannot say."""
    parts = members(annotation)
    if len(parts) > 1:
        read = [json_type(part) for part in parts]
        return Any if any(part is Any for part in read) else Union[tuple(read)]  # noqa: UP007
    plain = plain_type(annotation)
    if plain in _PLAIN or plain is None or plain is type(None):
        return type(None) if plain is None else plain
    if plain is Path:
        return str
    origin, inner = typing.get_origin(plain), typing.get_args(plain)
    if origin is Literal:
        return plain
    if origin is tuple and inner and inner[-1] is not Ellipsis:
        return tuple[tuple(json_type(item) for item in inner)]  # type: ignore[misc]
    values = items_of(plain)
    if values is not None:
        return dict[str, json_type(values)] if issubclass(origin, Mapping) else list[json_type(values)]  # type: ignore
    if inspect.isclass(plain) and not plain.__module__.startswith(("builtins", "typing", "collections")):
        return Annotated[dict[str, Any], Part(plain)]
    return {list: list[Any], tuple: list[Any], dict: dict[str, Any]}.get(plain, Any)


def _without_target(key: str, value: Any, annotation: Any) -> str | None:
    """Which part of a value should say what class it is, and does not."""
    part = next(filter(None, map(_part, members(annotation))), None)
    if part is not None and isinstance(value, dict) and TARGET not in value:
        return f"{key}: no _target_, so nothing says which {part.name} it is; is it a name that is not there?"
    inner = items_of(annotation)
    if inner is not None and isinstance(value, dict):
        inside = (_without_target(f"{key}.{name}", item, inner) for name, item in value.items())
        return next((problem for problem in inside if problem is not None), None)
    return None


def _part(annotation: Any) -> Part | None:
    read = json_type(annotation)
    return next((mark for mark in getattr(read, "__metadata__", ()) if isinstance(mark, Part)), None)


def words(annotation: Any) -> str:
    """A type as a user reads it: `a whole number or null`."""
    return " or ".join(dict.fromkeys(map(_word, members(annotation))))


def _word(member: Any) -> str:
    plain = plain_type(member)
    origin, inner = typing.get_origin(plain), typing.get_args(plain)
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if part := _part(member):
        return f"the keys of a {part.name}"
    if plain is Path:
        return "text"
    values = items_of(plain)
    if origin is tuple and Ellipsis not in inner:
        return f"a list of {len(inner)} {_several(inner[0])}"
    if values is not None:
        return (
            f"a mapping of names to {_several(values)}"
            if issubclass(origin, Mapping)
            else f"a list of {_several(values)}"
        )
    return {dict: "keys", **_WORDS}.get(type(None) if plain is None else plain, "a value")


def _several(annotation: Any) -> str:
    plain = plain_type(annotation)
    if len(members(annotation)) > 1 or typing.get_origin(plain) is Literal or items_of(plain) is not None:
        return f"({words(annotation)})"
    if part := _part(annotation):
        return f"{part.name} keys"
    return _SEVERAL.get(plain, "values")


def shown(value: Any) -> str:
    """A value as a message shows it, shortened."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _hint(value: Any, annotation: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return " (it must be finite)"
    if isinstance(value, int | float) and not isinstance(value, bool) and str in map(plain_type, members(annotation)):
        return f" (text that looks like a number is quoted: \"'{value}'\")"
    return advice_on(value, annotation)


def _dotted(key: str, name: Any) -> str:
    return f"{key}.{name}" if key else str(name)
