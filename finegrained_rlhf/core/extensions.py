"""Packages of others that join this one: their options, commands and classes count as ours do.

An installed distribution joins by an entry point of the group `finegrained_rlhf` that names its package:

    [project.entry-points.finegrained_rlhf]
    lab = "finegrained_lab"

The package's `conf/` is searched behind ours, and the classes that it names may stand in a run's configuration.
`commands.toml` beside it lists commands by task, each with a `conf/NAME.yaml`; `parts.toml` what else the package
brings, by kind and name: `doc2dial = "PACKAGE.MODULE.FUNCTION"` under `[dialogues]` reads a format of dialogues.
Distributions count that lie in a directory of installed packages, never what lies in the working directory. Nothing is
imported to learn this, and a package that is absent or broken brings nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any

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
        return {
            task: {name: what for name, what in rows.items() if (self.conf / f"{name}.yaml").is_file()}
            for task, rows in self._listed("commands.toml").items()
        }

    @cached_property
    def parts(self) -> Mapping[str, Mapping[str, str]]:
        """Where each of its parts is, by kind and name; what lies in another package is none of them."""
        return {
            kind: {name: place for name, place in rows.items() if place.startswith(f"{self.package}.")}
            for kind, rows in self._listed("parts.toml").items()
        }

    def _listed(self, file: str) -> dict[str, dict[str, str]]:
        """The tables of texts in a file; none where it cannot be read."""
        import tomllib

        try:
            listed = tomllib.loads((self.directory / file).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        tables = {name: rows for name, rows in listed.items() if isinstance(rows, dict)}
        return {name: {key: str(value) for key, value in rows.items()} for name, rows in tables.items()}


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


def parts(kind: str) -> dict[str, str]:
    """Where the parts of a kind are that packages bring, by name."""
    return {name: place for extension in extensions() for name, place in extension.parts.get(kind, {}).items()}


def load_part(kind: str, name: str) -> Any:
    """A part that a package brings.

    Raises:
        KeyError: none does.
        ImportError: its module cannot be imported.
        AttributeError: its module has no such name.
    """
    module, _, attribute = parts(kind)[name].rpartition(".")
    return getattr(import_module(module), attribute)
