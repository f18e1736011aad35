"""What a class takes, read from itself: types, markers, defaults and documentation of its fields.

Checks, help, defaults, paths, resume and the tables of keys ask here. Markers stand in `core/markers.py`.

Knows classes and plain containers. Knows no configuration file and no command line.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import math
import numbers
import re
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, wraps
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.exports import public_path
from finegrained_rlhf.core.extensions import packages
from finegrained_rlhf.core.markers import Bound, Harmless, Writes, advice_on, markers, members, plain_type

TARGET = "_target_"
"""The key that names the class of a mapping."""
PROJECT = ("finegrained_rlhf", "reward_models")
"""Packages whose classes are read for their settings."""
Mark = TypeVar("Mark")
MISSING = inspect.Parameter.empty
"""The default of a setting that must be given."""
_KNOWN: dict[Any, Mapping[str, Setting]] = {}
_SECTION = re.compile(r"^(Attributes|Args|Arguments):$")
_ENTRY = re.compile(r"^ {4}(\w+)(?: \([^)]*\))?: (.*)$")


@dataclass(frozen=True)
class Setting:
    """What a class takes by one name.

    Attributes:
        annotation: its type with its markers; Any where there is none, or it cannot be resolved.
        default: MISSING where it must be given.
        documentation: its entry in the docstring of its class, in one line; empty where there is none.
    """

    annotation: Any
    default: Any = MISSING
    documentation: str = ""


class Settings:
    """The base of dataclasses of settings: a value out of its range, or none of its words, is a `ConfigError`.

    `__post_init__` of a class is for what relates several of its values; it is called when each alone is right.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if (own := vars(cls).get("__post_init__")) is not None:

            @wraps(own)
            def checked(self: Any) -> None:
                check_values(self)
                own(self)

            cls.__post_init__ = checked  # type: ignore[method-assign]

    def __post_init__(self) -> None:
        check_values(self)


def check_values(settings: Any) -> None:
    """Refuse what one of an object's values alone says wrong.

    Args:
        settings: of a class whose annotations say what it takes.

    Raises:
        ConfigError: the first value out of its range, or none of its words, with its name.
    """
    for name, setting in settings_of(type(settings)).items():
        if (problem := problem_of_value(getattr(settings, name), setting.annotation)) is not None:
            raise ConfigError(stated(name, problem))


def is_ours(target: str) -> bool:
    """Whether a `_target_` names something of the project, or of a package that joins it."""
    first = target.partition(".")[0]
    return first in PROJECT or first in packages()


def named_class(target: str) -> Any:
    """What a `_target_` names.

    Raises:
        ImportError: its module cannot be imported.
        AttributeError: the module has no such name.
    """
    module, _, name = target.rpartition(".")
    return getattr(import_module(module), name)


def settings_of(kind: Any) -> Mapping[str, Setting]:
    """What a class or a function takes, by name, in order; what it takes by `**` is left out."""
    if kind not in _KNOWN:
        module = getattr(sys.modules.get(kind.__module__), "__spec__", None)
        if getattr(module, "_initializing", False):
            return _settings_of(kind)  # a name in an annotation may be defined below it
        _KNOWN[kind] = _settings_of(kind)
    return _KNOWN[kind]


def _settings_of(kind: Any) -> Mapping[str, Setting]:
    hints = _hints(kind)
    notes = {name: text for part in _documented(kind) for name, text in entries(part.__doc__ or "").items()}
    if _is_made(kind):
        taken = {field.name: _default_of(field) for field in dataclasses.fields(kind) if field.init}
    else:
        parameters = inspect.signature(kind).parameters.values()
        named = (p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL))
        taken = {parameter.name: parameter.default for parameter in named}
    return {name: Setting(hints.get(name, Any), default, notes.get(name, "")) for name, default in taken.items()}


@cache
def takes_any(kind: Any) -> bool:
    """Whether a class or function takes any other names as well."""
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in inspect.signature(kind).parameters.values())


def _is_made(kind: Any) -> bool:
    """Whether a class is built by the `__init__` that `dataclass` made."""
    owner = next((base for base in getattr(kind, "__mro__", ()) if "__init__" in vars(base)), None)
    return "__dataclass_params__" in getattr(owner, "__dict__", {}) and owner.__dataclass_params__.init  # type: ignore


def _default_of(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return MISSING if field.default is dataclasses.MISSING else field.default


def _hints(kind: Any) -> dict[str, Any]:
    """Annotations by name, those of base classes and of `__init__` included; Any for what cannot be resolved here."""
    holders = [kind] if not inspect.isclass(kind) else [*reversed(kind.__mro__)]
    if inspect.isclass(kind) and not _is_made(kind):
        holders.append(vars(kind).get("__init__"))
    hints: dict[str, Any] = {}
    for holder in holders:
        written = getattr(holder, "__dict__", {}).get("__annotations__") or getattr(holder, "__annotations__", {})
        module = sys.modules.get(getattr(holder, "__module__", ""), None)
        for name, annotation in dict(written).items():
            hints[name] = _resolved(annotation, vars(module) if module is not None else {})
    return hints


def _resolved(annotation: Any, names: dict[str, Any]) -> Any:
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return typing.get_type_hints(holder, names, include_extras=True)["it"]
    except Exception:  # a name that is imported for type checking alone
        return Any


def _documented(kind: Any) -> Iterator[Any]:
    """What has a docstring of a class's settings: its bases, itself, and its `__init__`."""
    yield from reversed(kind.__mro__[:-1]) if inspect.isclass(kind) else (kind,)
    if inspect.isclass(kind) and not _is_made(kind):
        yield kind.__init__


def entries(docstring: str) -> dict[str, str]:
    """What the `Attributes` or `Args` section of a Google-style docstring says of each name, in one line each."""
    texts: dict[str, str] = {}
    inside, last = False, ""
    for line in inspect.cleandoc(docstring).splitlines():
        if _SECTION.match(line):
            inside = True
        elif line and not line.startswith(" "):
            inside = False
        elif inside and (match := _ENTRY.match(line)):
            last = match.group(1)
            texts[last] = match.group(2)
        elif inside and last and line.strip():
            texts[last] += f" {line.strip()}"
    return texts


def class_of(annotation: Any) -> Any:
    """The dataclass that a type is, with or without markers; None where it is another type, or one of several."""
    plain = plain_type(annotation)
    return plain if inspect.isclass(plain) and dataclasses.is_dataclass(plain) else None


def items_of(annotation: Any) -> Any:
    """The type of a list's or tuple's items, or of a mapping's values; None where a type has neither."""
    origin, inner = typing.get_origin(plain_type(annotation)), typing.get_args(plain_type(annotation))
    if not inspect.isclass(origin) or not inner:
        return None
    if issubclass(origin, collections.abc.Mapping):
        return inner[1]
    return inner[0] if issubclass(origin, collections.abc.Iterable) else None


class Place(NamedTuple):
    """A value in a configuration whose class is known.

    Attributes:
        key: dotted; items of a list that have classes of their own by their number, `steps[0].data`.
        value: plain containers.
        setting: what its class takes there.
        holder: the mapping that it stands in.
    """

    key: str
    value: Any
    setting: Setting
    holder: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.key.rpartition(".")[2]

    def mark(self, kind: type[Mark]) -> Mark | None:
        """The first marker of a class on it; None where there is none."""
        return next((mark for mark in markers(self.setting.annotation) if isinstance(mark, kind)), None)

    @property
    def meaning(self) -> str:
        """What the documentation of its class says of it, and what its annotation does."""
        range_ = " and ".join(str(mark) for mark in markers(self.setting.annotation) if isinstance(mark, Bound))
        may = "may change on resume" if self.mark(Harmless) is not None else ""
        marks = "; ".join(filter(None, (range_, may)))
        return f"{self.setting.documentation} ({marks})".lstrip() if marks else self.setting.documentation

    @property
    def is_harmless(self) -> bool:
        """Whether a run may go on with another value."""
        return self.mark(Harmless) is not None or self.mark(Writes) is not None

    @property
    def paths(self) -> Iterator[str]:
        """The texts that it holds, in a list and in a mapping too, but for the words that are no path."""
        value = self.value
        texts = value if isinstance(value, list) else [*value.values()] if isinstance(value, Mapping) else [value]
        if isinstance(value, Mapping) and TARGET in value:
            return
        words = [word for member in members(self.setting.annotation) for word in _words(member)]
        yield from (text for text in texts if isinstance(text, str) and text not in words)


def places(config: Mapping[str, Any], key: str = "") -> Iterator[Place]:
    """Every value in a configuration that a class takes, from outside to inside.

    Classes of the project are imported; others count where they have been, so that no text of a file imports anything.
    """
    settings = _settings_of_target(config.get(TARGET))
    for name, value in config.items():
        dotted = f"{key}.{name}" if key else str(name)
        if name in settings:
            yield Place(dotted, value, settings[name], config)
        yield from _places_within(value, dotted)


def _places_within(value: Any, key: str) -> Iterator[Place]:
    if isinstance(value, Mapping):
        yield from places(value, key)
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _places_within(item, f"{key}[{number}]")


def problem_of_value(value: Any, annotation: Any) -> str | None:
    """What is wrong with a value: no number, out of its range, or none of its words. None where nothing is."""
    if value is None and takes_null(annotation):
        return None
    words = [word for member in members(annotation) for word in _words(member)]
    alone = all(_words(member) or plain_type(member) in (None, type(None)) for member in members(annotation))
    if words and (alone or isinstance(value, str)) and value not in words and not _any_text(annotation):
        return f"expected one of {', '.join(map(str, words))}, got {value!r}{advice_on(value, annotation)}"
    if (kind := _number_kind(annotation)) is not None and not _is_number(value, kind):
        return f"expected {_or_null(annotation)}{kind}, got {value!r}"
    for member in members(annotation):
        marks = typing.get_args(member)[1:] if typing.get_origin(member) is Annotated else ()
        bounds = [mark for mark in marks if isinstance(mark, Bound)]
        number = value if isinstance(value, int | float) else len(value) if isinstance(value, list | tuple) else None
        if bounds and number is not None and not all(bound.holds(number) for bound in bounds):
            return f"expected {_or_null(annotation)}{' and '.join(map(str, bounds))}, got {value!r}"
    return _problem_of_items(value, annotation)


def stated(key: str, problem: str) -> str:
    """A problem of a value with its key; the problem of a value in a mapping begins with the rest of its key."""
    return f"{key}{problem}" if problem.startswith(".") else f"{key}: {problem}"


def _number_kind(annotation: Any) -> str | None:
    """What a value must be, where it can be nothing but a number."""
    kinds = {plain_type(member) for member in members(annotation)} - {None, type(None)}
    return {(float,): "a finite number", (int,): "a whole number"}.get(tuple(kinds))


def _is_number(value: Any, kind: str) -> bool:
    right = isinstance(value, numbers.Integral if kind == "a whole number" else numbers.Real)
    return right and not isinstance(value, bool) and math.isfinite(value)


def takes_null(annotation: Any) -> bool:
    """Whether a setting may be left without a value."""
    return any(plain_type(member) in (None, type(None), Any) for member in members(annotation))


def _or_null(annotation: Any) -> str:
    return "null or " if takes_null(annotation) else ""


def _words(member: Any) -> tuple[Any, ...]:
    plain = plain_type(member)
    return typing.get_args(plain) if typing.get_origin(plain) is Literal else ()


def _any_text(annotation: Any) -> bool:
    return any(plain_type(member) in (str, Any, Path) for member in members(annotation))


def _problem_of_items(value: Any, annotation: Any) -> str | None:
    for inner in filter(None, map(items_of, members(annotation))):
        if isinstance(value, Mapping):
            problems = ((name, problem_of_value(item, inner)) for name, item in value.items())
            return next((f".{stated(name, problem)}" for name, problem in problems if problem), None)
        if isinstance(value, list | tuple):
            return next(filter(None, (problem_of_value(item, inner) for item in value)), None)
    return None


class Unwritable(Exception):
    """A default that no configuration can hold."""


def written(value: Any) -> Any:
    """A default as a configuration holds it: plain containers, objects as mappings with `_target_`.

    Raises:
        Unwritable: it is an object of another kind.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, list | tuple):
        return [written(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): written(item) for name, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {name: written(getattr(value, name)) for name in settings_of(type(value))}
        return {TARGET: public_path(type(value)), **parts}
    raise Unwritable(type(value).__name__)


def filled(config: Mapping[str, Any], *, missing: Any = MISSING) -> dict[str, Any]:
    """A configuration with its classes' defaults where it has no value, and the class of a part that can be but one.

    Classes of the project are read; what others take is their affair.

    Args:
        config: plain containers; interpolations stay.
        missing: stands for what must be given; left out by default.
    """
    return _filled(config, None, missing, None)


def _filled(config: Mapping[str, Any], annotation: Any, missing: Any, instance: Any) -> dict[str, Any]:
    """See `filled`; `instance` is what the class above takes for this part.

    Its values are the defaults where the part names no class of its own.
    """
    config = dict(config)
    only, instance = class_of(annotation), None if TARGET in config else instance
    if TARGET not in config and only is not None:
        config = {TARGET: public_path(only), **config}
    target = config.get(TARGET)
    settings = _settings_of_target(target) if isinstance(target, str) and is_ours(target) else {}
    alike = bool(settings) and type(instance) is named_class(str(target))
    for name, setting in settings.items():
        if name not in config:
            default = getattr(instance, name) if alike else setting.default
            held = missing if default is MISSING else _written_or_missing(default)
            if held is not MISSING:
                config[name] = held
    inner = None if target is not None else items_of(annotation)
    for name, value in config.items():
        setting = settings.get(name, Setting(inner, None))
        above = getattr(instance, name, None) if alike else setting.default
        config[name] = _filled_value(value, setting.annotation, missing, above)
    return config


def _filled_value(value: Any, annotation: Any, missing: Any, instance: Any = None) -> Any:
    if isinstance(value, Mapping):
        kept = [member for member in members(annotation) if plain_type(member) not in (None, type(None))]
        return _filled(value, kept[0] if len(kept) == len(members(annotation)) == 1 else None, missing, instance)
    if isinstance(value, list):
        inner = items_of(annotation)
        return [_filled_value(item, inner, missing) for item in value]
    return value


def _written_or_missing(default: Any) -> Any:
    try:
        return MISSING if default is MISSING else written(default)
    except Unwritable:
        return MISSING


def _settings_of_target(target: Any) -> Mapping[str, Setting]:
    """What the class of a `_target_` takes; nothing where it is none, or somebody else's that was not imported."""
    if not isinstance(target, str):
        return {}
    module, _, name = target.rpartition(".")
    try:
        return settings_of(named_class(target) if is_ours(target) else vars(sys.modules[module])[name])
    except (ImportError, AttributeError, KeyError, TypeError, ValueError):
        return {}  # whoever builds it says what is wrong
