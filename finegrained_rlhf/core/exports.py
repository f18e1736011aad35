"""Names that a package offers at its door, imported when they are first asked for.

A `_target_` in a saved configuration names such a door (`finegrained_rlhf.training.ppo.TrainPPO`), so that a module
behind it can move without breaking an old run, and importing a package stays cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

_DOORS: dict[str, str] = {}


def lazy_exports(package: str, names: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package; `__all__` is its public names.

    Args:
        package: the package's dotted name.
        names: public name → the module below the package that defines it, dotted and relative.
    """
    _DOORS.update({f"{package}.{module}.{name}": f"{package}.{name}" for name, module in names.items()})

    def get(name: str) -> Any:
        if name == "__all__":  # what `from PACKAGE import *` asks for
            return sorted(names)
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{names[name]}"), name)

    return get, lambda: sorted(names)


def public_path(kind: type) -> str:
    """The dotted name by which a configuration names a class: the door of its package, else where it is defined."""
    defined = f"{kind.__module__}.{kind.__qualname__}"
    return _DOORS.get(defined, defined)
