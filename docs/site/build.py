"""Build the documentation site: the pages as they lie in the repository, and the API from docstrings.

Example: python docs/site/build.py outputs/site

A link that leads nowhere, an anchor that a page does not have or a docstring that cannot be read ends the build. The
API is read from the source; of the package, only what reads configurations is imported.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml

from finegrained_rlhf.launch.checks.help import keys
from finegrained_rlhf.launch.command_line import CommandLine
from finegrained_rlhf.launch.commands import NAMES
from finegrained_rlhf.launch.configurations import typed
from finegrained_rlhf.launch.filling import fill_defaults

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("finegrained_rlhf", "reward_models")
LISTED = tuple(name for name in NAMES if name not in ("run_experiment", "sweep"))
"""Commands whose keys are listed: those of the others are another command's, or an experiment's."""
_PAGES = (
    "docs/site/*.css",
    "docs/site/*.js",
    "*.md",
    "LICENSE",
    "CITATION.cff",
    "docs/**/*.md",
    "docs/**/*.ipynb",
    "docs/images/*",
    "docs/results/**/*",
)
_LINKED = ("benchmarks/results/*",)


def copy_pages(to: Path) -> None:
    """Copy every page and what pages show to a directory of the same layout; the README is the first page."""
    for pattern in (*_PAGES, *_LINKED):
        for source in ROOT.glob(pattern):
            if source.is_file() and ("site" not in source.relative_to(ROOT).parts or source.suffix in (".css", ".js")):
                target = to / source.relative_to(ROOT)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
    (to / "README.md").rename(to / "index.md")


def rooms() -> dict[str, list[str]]:
    """Package → its modules, in the order of their names; packages without modules are left out."""
    below: dict[str, list[str]] = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if path.name != "__init__.py" and not any(part.startswith("_") for part in parts):
                below.setdefault(".".join(parts[:-1]), []).append(".".join(parts))
    return below


def write_api(to: Path, only: Collection[str] | None = None) -> list[dict[str, Any]]:
    """One page a package, with everything public in its modules.

    Args:
        to: where the pages lie.
        only: of these packages; None takes all.

    Returns:
        The entries of the navigation: a room with the packages below it folds, the parents before the children.
    """
    entries: dict[str, list[dict[str, str]]] = {}
    for package, modules in sorted(rooms().items()):
        if only is not None and package not in only:
            continue
        page = to / "api" / f"{package}.md"
        page.parent.mkdir(exist_ok=True)
        text = "\n\n".join([f"# {package}", *(f"::: {module}" for module in modules)])
        page.write_text(text + "\n", encoding="utf-8")
        name = package.removeprefix("finegrained_rlhf.")
        entries.setdefault(name.partition(".")[0], []).append({name: f"api/{page.name}"})
    return [below[0] if len(below) == 1 else {room: below} for room, below in entries.items()]


def key_table(command: str, line: CommandLine) -> list[str]:
    """The lines of a table of a command's keys, as its configuration is with a command line."""
    rows = [tuple(cell.replace("|", "\\|") for cell in row) for row in keys(command, line)]
    table = [f"| `{key.rstrip(':')}` | {meaning} |" for key, meaning in rows]
    return ["| key and default | meaning |", "|---|---|", *table]


def write_keys(to: Path, commands: Collection[str] = LISTED) -> list[dict[str, str]]:
    """One page a command, with a table of its keys, read from the classes that take them.

    Args:
        to: where the pages lie.
        commands: by name.

    Returns:
        The entries of the navigation.
    """
    fill_defaults()
    (to / "keys").mkdir(exist_ok=True)
    for command in commands:
        page = [f"# Keys of {typed(command)}", "", *key_table(command, CommandLine(()))]
        (to / "keys" / f"{command}.md").write_text("\n".join(page) + "\n", encoding="utf-8")
    return [{command.replace("_", "-"): f"keys/{command}.md"} for command in commands]


def site_configuration(pages: Path, site: Path, *, only: Collection[str] | None = None) -> dict[str, Any]:
    """The settings of mkdocs with the API at the end of the navigation, folded.

    Args:
        pages: directory of the pages.
        site: directory to write.
        only: packages of the API, which takes most of the time, as does the index to search: then there is none. None
            takes all of both.
    """
    config: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("mkdocs.yml").read_text(encoding="utf-8"))
    config.update(docs_dir=str(pages), site_dir=str(site))
    (*_, behind) = config["nav"][-1].values()
    behind.append({"Keys of commands": write_keys(pages, LISTED if only is None else LISTED[:1])})
    behind.append({"API": write_api(pages, only)})
    if only is not None:
        config["plugins"] = [plugin for plugin in config["plugins"] if plugin not in ("search", "offline")]
    _handler(config)["paths"] = [str(ROOT)]
    return config


def docstring_options() -> dict[str, Any]:
    """How docstrings are read: the style and the options of griffe."""
    config = yaml.safe_load(Path(__file__).with_name("mkdocs.yml").read_text(encoding="utf-8"))
    options = _handler(config)["options"]
    return {"docstring_parser": options["docstring_style"], "docstring_options": options["docstring_options"]}


def _handler(config: dict[str, Any]) -> dict[str, Any]:
    (plugin,) = [plugin for plugin in config["plugins"] if "mkdocstrings" in plugin]
    handler: dict[str, Any] = plugin["mkdocstrings"]["handlers"]["python"]
    return handler


def build_site(site: Path, *, only: Collection[str] | None = None) -> int:
    """Write the site to a directory, with the API of all packages or of some. Returns mkdocs' exit code."""
    with tempfile.TemporaryDirectory() as temporary:
        pages = Path(temporary) / "pages"
        pages.mkdir()
        copy_pages(pages)
        settings = Path(temporary) / "mkdocs.yml"
        settings.write_text(yaml.safe_dump(site_configuration(pages, site.resolve(), only=only)), encoding="utf-8")
        return run_mkdocs(settings)


def run_mkdocs(settings: Path) -> int:
    """Build from a settings file; print what is wrong. Returns mkdocs' exit code, 1 where it warns.

    (With `--quiet` it would count no warning, and `--strict` would let everything pass.)
    """
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(settings)]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wrong = [line for line in done.stdout.splitlines() if line.startswith(("WARNING", "ERROR", "Error"))]
    if done.returncode:
        print("\n".join(wrong) or done.stdout)
    return done.returncode


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("site", type=Path, help="directory to write; what is in it is replaced")
    sys.exit(build_site(parser.parse_args().site))
