"""Packages of others that join this one: their options, commands and classes count as ours do.

An installed distribution joins by an entry point of the group `finegrained_rlhf` that names its package:

    [project.entry-points.finegrained_rlhf]
    lab = "finegrained_lab"

The package's `conf/` is searched behind ours, `commands.toml` beside it lists commands by task, each with a
`conf/NAME.yaml`, and the classes that `conf/` names may stand in a run's configuration. Distributions count that lie in
a directory of installed packages, never what lies in the working directory. Nothing is imported to learn this, and a
package that is absent or broken brings nothing.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.machinery import ModuleSpec
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

GROUP = "finegrained_rlhf"
_INSTALLED = ("site-packages", "dist-packages")


@dataclass(frozen=True)
class Extension:
    """A package that joins.

    Attributes:
        package: its name, by which its classes are named.
        directory: where it lies.
    """

    package: str
    directory: Path

    @property
    def conf(self) -> Path:
        """Its configurations."""
        return self.directory / "conf"

    @cached_property
    def commands(self) -> Mapping[str, Mapping[str, str]]:
        """What each of its commands does, by task and name."""
        try:
            listed = tomllib.loads((self.directory / "commands.toml").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        tasks = {task: rows for task, rows in listed.items() if isinstance(rows, dict)}
        return {
            task: {name: str(what) for name, what in rows.items() if (self.conf / f"{name}.yaml").is_file()}
            for task, rows in tasks.items()
        }


@cache
def extensions() -> tuple[Extension, ...]:
    """The packages that join, by name."""
    here = os.path.realpath(os.getcwd())
    places = [place for place in sys.path if Path(place).name in _INSTALLED and os.path.realpath(place) != here]
    names = {
        entry.value
        for distribution in distributions(path=places)
        if f"[{GROUP}]" in (distribution.read_text("entry_points.txt") or "")
        for entry in distribution.entry_points
        if entry.group == GROUP
    }
    specs = {name: _spec(name) for name in sorted(names)}
    return tuple(
        Extension(name, Path(spec.submodule_search_locations[0]))
        for name, spec in specs.items()
        if spec is not None and spec.submodule_search_locations
    )


def _spec(package: str) -> ModuleSpec | None:
    """Where a package lies; the package is not imported."""
    try:
        return find_spec(package) if package.isidentifier() else None
    except (ImportError, ValueError):
        return None


def packages() -> tuple[str, ...]:
    """Names of the packages that join."""
    return tuple(extension.package for extension in extensions())
