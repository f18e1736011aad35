"""Whether a value is of the type that its key declares, by pydantic and strictly: no text counts as a number.

A whole number may stand for a number, a list for a tuple; NaN and infinity stand for nothing. Where a class of the
project is declared, a mapping with `_target_` is expected. A type that cannot be read from source is not checked.
"""

from __future__ import annotations

import ast
import json
import math
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal, Union

from finegrained_rlhf.launch.checks.declared import Field, Module, named

_PLAIN: Mapping[str, Any] = {"int": int, "float": float, "str": str, "bool": bool, "None": None, "Path": str}
_LISTS = ("Sequence", "list", "List", "Iterable", "Collection")
_MAPPINGS = ("Mapping", "dict", "Dict", "MutableMapping")
_SEEDS = ("seed", "seeds")
_LARGEST_SEED = 2**63 - 1
_WORDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    type(None): "null",
    dict: "keys",
}
_SEVERAL = {int: "whole numbers", float: "numbers", str: "texts", bool: "true or false"}


class Part:
    """Marks a mapping that a class of the project is built from.

    Args:
        name: of the class.
    """

    def __init__(self, name: str) -> None:
        self.name = name


def problem(key: str, value: Any, field: Field) -> str | None:
    """What is wrong with a key's value, in one line; None where nothing is."""
    declared = Any if field.annotation is None else read(field.annotation, field.module)
    name = key.rpartition(".")[2]
    if declared is Any:
        return problem_of_seed(key, value) if name in _SEEDS else None
    if typing.get_origin(declared) is dict and isinstance(value, dict):
        inner = typing.get_args(declared)[1]
        for entry, item in value.items():
            if not _holds(item, inner):
                return f"{key}.{entry}: expected {words(inner)}, got {shown(item)}{_hint(item, inner)}"
    if not _holds(value, declared):
        return f"{key}: expected {words(declared)}, got {shown(value)}{_hint(value, declared)}"
    if name in _SEEDS and (wrong := problem_of_seed(key, value)):
        return wrong
    return _without_target(key, value, declared)


def problem_of_seed(key: str, value: Any) -> str | None:
    """What is wrong with a seed, or with a list of seeds; null is none."""
    for seed in value if isinstance(value, list) else [value]:
        if seed is not None and (type(seed) is not int or not 0 <= seed <= _LARGEST_SEED):
            return f"{key}: expected a whole number from 0 to 2^63 - 1, got {shown(seed)}"
    return None


def read(node: ast.expr, module: Module) -> Any:
    """A type that pydantic knows for an annotation; Any for what it cannot say."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            return read(ast.parse(node.value, mode="eval").body, module)
        return node.value
    if isinstance(node, ast.BinOp):
        return _union([read(node.left, module), read(node.right, module)])
    if isinstance(node, ast.Name):
        return _named(node.id, module)
    if isinstance(node, ast.Subscript):
        return _subscript(node, module)
    return Any


def _named(name: str, module: Module) -> Any:
    if name == "Any":
        return Any
    if name in _PLAIN:
        return _PLAIN[name]
    if name in _LISTS or name == "tuple":
        return list[Any]
    if name in _MAPPINGS:
        return dict[str, Any]
    place = named(name, module)
    if place is None:
        return Any
    node, origin = place
    if isinstance(node, ast.ClassDef):
        return Annotated[dict[str, Any], Part(node.name)]
    return read(node.value, origin) if isinstance(node, ast.Assign) else Any


def _subscript(node: ast.Subscript, module: Module) -> Any:
    name = ast.unparse(node.value).rpartition(".")[2]
    inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if name == "Literal":
        return Literal[tuple(ast.literal_eval(item) for item in inner)]  # type: ignore[valid-type]
    if name == "Annotated":
        return read(inner[0], module)
    if name in ("Union", "Optional"):
        return _union([*(read(item, module) for item in inner), *([None] if name == "Optional" else [])])
    if name in _LISTS:
        return list[read(inner[0], module)]  # type: ignore[misc]
    if name in _MAPPINGS:
        return dict[str, read(inner[1], module)]  # type: ignore[misc]
    if name == "tuple":
        if len(inner) == 2 and isinstance(inner[1], ast.Constant) and inner[1].value is Ellipsis:
            return tuple[read(inner[0], module), ...]  # type: ignore[misc]
        return tuple[tuple(read(item, module) for item in inner)]  # type: ignore[misc]
    return Any


def _union(members: list[Any]) -> Any:
    return Any if any(member is Any for member in members) else Union[tuple(members)]  # noqa: UP007


@cache
def _adapter(declared: Any) -> Any:
    from pydantic import ConfigDict, TypeAdapter

    return TypeAdapter(declared, config=ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True))


def _holds(value: Any, declared: Any) -> bool:
    from pydantic import ValidationError

    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        return True  # an object of Python's own: not from a command line
    try:
        _adapter(declared).validate_json(text)
    except ValidationError:
        return False
    return True


def _without_target(key: str, value: Any, declared: Any) -> str | None:
    """Which part of a value should say what class it is, and does not."""
    part = _part(declared)
    if part is not None and isinstance(value, dict) and "_target_" not in value:
        return f"{key}: no _target_, so nothing says which {part.name} it is; is it a name that is not there?"
    if typing.get_origin(declared) is dict and isinstance(value, dict):
        inner = typing.get_args(declared)[1]
        problems = (_without_target(f"{key}.{name}", item, inner) for name, item in value.items())
        return next((found for found in problems if found is not None), None)
    return None


def _members(declared: Any) -> tuple[Any, ...]:
    union = typing.get_origin(declared) in (Union, types.UnionType)
    return typing.get_args(declared) if union else (declared,)


def _part(declared: Any) -> Part | None:
    parts = [m for member in _members(declared) for m in getattr(member, "__metadata__", ()) if isinstance(m, Part)]
    return parts[0] if parts else None


def words(declared: Any) -> str:
    """A type as a user reads it: `a whole number or null`."""
    return " or ".join(dict.fromkeys(_word(member) for member in _members(declared)))


def _word(declared: Any) -> str:
    origin, inner = typing.get_origin(declared), typing.get_args(declared)
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if part := _part(declared):
        return f"the keys of a {part.name}"
    if origin is list:
        return f"a list of {_several(inner[0])}"
    if origin is tuple:
        several = _several(inner[0])
        return f"a list of {several}" if Ellipsis in inner else f"a list of {len(inner)} {several}"
    if origin is dict:
        return f"a mapping of names to {_several(inner[1])}"
    return _WORDS.get(declared, "a value")


def _several(declared: Any) -> str:
    if typing.get_origin(declared) in (Literal, dict, list, tuple) or len(_members(declared)) > 1:
        return f"({words(declared)})"
    if part := _part(declared):
        return f"{part.name} keys"
    return _SEVERAL.get(declared, "values")


def shown(value: Any) -> str:
    """A value as a message shows it, shortened."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _hint(value: Any, declared: Any) -> str:
    members = _members(declared)
    if isinstance(value, float) and not math.isfinite(value):
        return " (it must be finite)"
    if isinstance(value, int | float) and not isinstance(value, bool) and str in members:
        return f" (text that looks like a number is quoted: \"'{value}'\")"
    return ""
