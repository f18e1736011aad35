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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.machinery import ModuleSpec
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
        import tomllib

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
    names = {package for place in places for package in _named_in(Path(place))}
    specs = {name: _spec(name) for name in sorted(names)}
    return tuple(
        Extension(name, Path(spec.submodule_search_locations[0]))
        for name, spec in specs.items()
        if spec is not None and spec.submodule_search_locations
    )


def _named_in(place: Path) -> Iterator[str]:
    """What the entry points of the group name, of all distributions in a directory of installed packages.

    `importlib.metadata` says the same in five times the time, which every command would wait for.
    """
    for file in place.glob("*-info/entry_points.txt"):
        text = file.read_text(encoding="utf-8", errors="replace")
        if f"[{GROUP}]" in text:
            from configparser import ConfigParser, Error

            try:
                parser = ConfigParser(delimiters="=", interpolation=None, strict=False)
                parser.read_string(text)
            except Error:
                continue
            yield from parser[GROUP].values() if GROUP in parser else ()


def _spec(package: str) -> ModuleSpec | None:
    """Where a package lies; the package is not imported."""
    try:
        return find_spec(package) if package.isidentifier() else None
    except (ImportError, ValueError):
        return None


def packages() -> tuple[str, ...]:
    """Names of the packages that join."""
    return tuple(extension.package for extension in extensions())
