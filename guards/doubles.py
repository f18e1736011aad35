"""Values that stand twice: in a YAML file of `conf/`, and as a default of the class that its `_target_` names.

A value is counted where it stands in a file directly in `conf/` or in one of its groups, below a mapping with
`_target_`, and that class has a default for its name: a field's of a dataclass, a parameter's of any other class, and
where the class that holds it has an instance of it as its own default, that instance's. Not counted are `???`, values
with `${…}`, names of classes, and the groups that exist to set other values (`OVERRIDES`).
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

OVERRIDES = ("experiment", "pipeline", "preset", "hydra")
"""Groups that exist to set other values."""
_MISSING = inspect.Parameter.empty


@dataclasses.dataclass(frozen=True)
class Double:
    """A value that stands in YAML and in a class.

    Attributes:
        file: below `conf/`.
        key: dotted path in the file.
        owner: dotted name of the class.
        value: in YAML.
        default: of the class.
    """

    file: str
    key: str
    owner: str
    value: Any
    default: Any

    @property
    def equal(self) -> bool:
        """Whether the YAML file repeats the class."""
        return bool(self.value == self.default)


def read_doubles(conf: Path) -> list[Double]:
    """Every such value of a configuration directory, whose classes are imported.

    Args:
        conf: the directory.
    """
    files = [
        path for path in sorted([*conf.glob("*.yaml"), *conf.glob("*/*.yaml")]) if path.parent.name not in OVERRIDES
    ]
    return [
        double
        for path in files
        for double in doubles_in(yaml.safe_load(path.read_text(encoding="utf-8")), path.relative_to(conf).as_posix())
    ]


def doubles_in(node: Any, file: str, prefix: str = "", instance: Any = None) -> Iterator[Double]:
    """The values of a node of YAML that a class has defaults for.

    Args:
        node: a mapping; of anything else nothing is counted.
        file: name for the result.
        prefix: dotted path of the node, with a dot behind it.
        instance: default of the class that holds the node, if there is one.
    """
    if not isinstance(node, dict):
        return
    owner = str(node.get("_target_", ""))
    module, _, attribute = owner.rpartition(".")
    kind = getattr(import_module(module), attribute) if module else None
    for name, value in node.items():
        default = _MISSING if kind is None or name == "_target_" else _default(kind, name, instance)
        if isinstance(value, dict):
            yield from doubles_in(value, file, f"{prefix}{name}.", default)
        elif default is not _MISSING and not (isinstance(value, str) and re.search(r"\?\?\?|\$\{", value)):
            yield Double(file, f"{prefix}{name}", owner, _plain(value), _plain(default))


def _plain(value: Any) -> Any:
    """A value as YAML would write it."""
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _default(kind: Any, name: str, instance: Any) -> Any:
    """What a class takes for a name that is not given: the holder's own default instance says it, if there is one."""
    if type(instance) is kind:
        return getattr(instance, name, _MISSING)
    if not dataclasses.is_dataclass(kind):
        parameter = inspect.signature(kind).parameters.get(name)
        return _MISSING if parameter is None else parameter.default
    field = {f.name: f for f in dataclasses.fields(kind)}.get(name)
    if field is None:
        return _MISSING
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return _MISSING if field.default is dataclasses.MISSING else field.default
