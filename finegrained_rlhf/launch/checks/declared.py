"""What a class takes, read from its source without importing it: fields, annotations, and the documentation of each.

Importing the class of a job imports torch, which takes seconds; a misspelt key is said, and `--help` printed, before.
What cannot be read from source (a name that a module makes while it runs) is left to the import: None.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

_SECTION = re.compile(r"^(Attributes|Args|Arguments):$")
_ENTRY = re.compile(r"^ {4}(\w+)(?: \([^)]*\))?: (.*)$")


@dataclass(frozen=True)
class Module:
    """The source of a module.

    Attributes:
        name: dotted.
        tree: its syntax.
        package: whether it is an `__init__.py`.
    """

    name: str
    tree: ast.Module
    package: bool


@dataclass(frozen=True)
class Field:
    """What a class takes by one name.

    Attributes:
        annotation: of its type; None where there is none.
        module: in which names of the annotation are to be read.
        required: whether it has no default.
        documentation: its entry in the docstring; empty where there is none.
    """

    annotation: ast.expr | None
    module: Module
    required: bool
    documentation: str = ""


@dataclass(frozen=True)
class Declaration:
    """What a class or function takes.

    Attributes:
        name: of it.
        fields: by name, in order.
        open: whether it takes any other names as well.
    """

    name: str
    fields: Mapping[str, Field]
    open: bool = False


@cache
def declared(target: str) -> Declaration | None:
    """What the class or function of a `_target_` takes; None where its source does not say."""
    place = find(target)
    if place is None:
        return None
    node, module = place
    if isinstance(node, ast.ClassDef):
        return _class(node, module)
    return _function(node, module, skip=0) if isinstance(node, ast.FunctionDef) else None


@cache
def find(dotted: str) -> tuple[ast.stmt, Module] | None:
    """The statement that defines a dotted name (class, function or assignment), through re-exports, and its module."""
    parts = dotted.split(".")
    for end in range(len(parts) - 1, 0, -1):
        module = source(".".join(parts[:end]))
        if module is not None:
            return named(parts[end], module) if end == len(parts) - 1 else None
    return None


def named(name: str, module: Module, seen: tuple[str, ...] = ()) -> tuple[ast.stmt, Module] | None:
    """What a name means at the top level of a module."""
    for node in _top_level(module.tree.body):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return node, module
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
            return node, module
        if isinstance(node, ast.Assign) and (behind := _behind_the_door(name, node.value)) is not None:
            origin = source(f"{module.name}.{behind}")
            return named(name, origin, (*seen, module.name)) if origin is not None else None
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name and module.name not in seen:
                    origin = source(_absolute(node, module))
                    return named(alias.name, origin, (*seen, module.name)) if origin is not None else None
    return None


@cache
def source(name: str) -> Module | None:
    """The source of a module, found without importing the packages above it; None where there is none."""
    top, *below = name.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    places = [Path(place) for place in spec.submodule_search_locations or ()]
    if not places and not below and spec.origin:
        candidates = [Path(spec.origin)]
    else:
        bases = [place.joinpath(*below) for place in places]
        candidates = [c for base in bases for c in (base / "__init__.py", base.with_suffix(".py"))]
    for path in candidates:
        if path.suffix == ".py" and path.is_file():
            try:
                return Module(name, ast.parse(path.read_text(encoding="utf-8")), path.name == "__init__.py")
            except (SyntaxError, UnicodeDecodeError, ValueError):
                return None  # the import says what is wrong with it
    return None


def module_exists(name: str) -> bool:
    """Whether a module's file is there, readable or not."""
    top, *below = name.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    if spec is None or not below:
        return spec is not None
    bases = [Path(place).joinpath(*below) for place in spec.submodule_search_locations or ()]
    return any(base.is_dir() or list(base.parent.glob(f"{base.name}.*")) for base in bases)


def _behind_the_door(name: str, value: ast.expr) -> str | None:
    """The module that a package's `lazy_exports` (core/exports.py) names for one of its names."""
    if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "lazy_exports"):
        return None
    exports: dict[str, str] = ast.literal_eval(value.args[1])
    return exports.get(name)


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a module, those under `if` and `try` included."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from _top_level([*node.body, *node.orelse])


def _absolute(node: ast.ImportFrom, module: Module) -> str:
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    base = parts[: len(parts) - node.level + (1 if module.package else 0)]
    return ".".join([*base, *([node.module] if node.module else [])])


def _class(node: ast.ClassDef, module: Module) -> Declaration | None:
    fields: dict[str, Field] = {}
    wide = False
    for base in node.bases:
        inherited = _base(base, module)
        if inherited is not None:
            fields |= inherited.fields
            wide = wide or inherited.open
    own = next((item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"), None)
    if own is not None:
        made = _function(own, module, skip=1)
        fields, wide = dict(made.fields), made.open
    elif any("dataclass" in ast.unparse(mark) for mark in node.decorator_list):
        for item in node.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and _is_field(item):
                fields[item.target.id] = Field(item.annotation, module, item.value is None or not _defaults(item.value))
    notes = {name: text for text_of in _docstrings(node, own) for name, text in entries(text_of).items()}
    fields = {
        name: replace(field, documentation=notes.get(name, field.documentation)) for name, field in fields.items()
    }
    return Declaration(node.name, fields, wide)


def _base(base: ast.expr, module: Module) -> Declaration | None:
    generic = base.value if isinstance(base, ast.Subscript) else base  # TrainingRun[PPOTrainer]
    place = named(generic.id, module) if isinstance(generic, ast.Name) else None
    return _class(place[0], place[1]) if place is not None and isinstance(place[0], ast.ClassDef) else None


def _is_field(item: ast.AnnAssign) -> bool:
    return "ClassVar" not in ast.unparse(item.annotation) and not (
        isinstance(item.value, ast.Call)
        and any(k.arg == "init" and ast.unparse(k.value) == "False" for k in item.value.keywords)
    )


def _defaults(value: ast.expr) -> bool:
    if isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] == "field":
        return any(keyword.arg in ("default", "default_factory") for keyword in value.keywords)
    return True


def _function(node: ast.FunctionDef, module: Module, skip: int) -> Declaration:
    ordered = [*node.args.posonlyargs, *node.args.args][skip:]
    defaults = len(node.args.defaults)
    fields = {
        argument.arg: Field(argument.annotation, module, place < len(ordered) - defaults)
        for place, argument in enumerate(ordered)
    }
    for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
        fields[argument.arg] = Field(argument.annotation, module, default is None)
    notes = entries(ast.get_docstring(node) or "")
    fields = {name: replace(field, documentation=notes.get(name, "")) for name, field in fields.items()}
    return Declaration(node.name, fields, node.args.kwarg is not None)


def _docstrings(node: ast.ClassDef, init: ast.FunctionDef | None) -> Iterator[str]:
    for part in (node, init):
        if part is not None:
            yield ast.get_docstring(part) or ""


def entries(docstring: str) -> dict[str, str]:
    """What the `Attributes` or `Args` section of a Google-style docstring says of each name, in one line each."""
    found: dict[str, str] = {}
    inside, last = False, ""
    for line in inspect.cleandoc(docstring).splitlines():
        if _SECTION.match(line):
            inside = True
        elif line and not line.startswith(" "):
            inside = False
        elif inside and (match := _ENTRY.match(line)):
            last = match.group(1)
            found[last] = match.group(2)
        elif inside and last and line.strip():
            found[last] += f" {line.strip()}"
    return found
