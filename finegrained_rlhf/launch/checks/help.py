"""What `--help` prints: what a command does, the groups that it takes, and each key with its value and its meaning.

The meaning of a key is what the documentation of its class says, read from source; of a key that belongs to no class,
the comment behind it in the configuration. Nothing heavy is imported.
"""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import ConfigCompositionException
from omegaconf import OmegaConf

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import places
from finegrained_rlhf.launch.checks.experiments import options
from finegrained_rlhf.launch.command_line import CommandLine, quoted
from finegrained_rlhf.launch.configurations import conf_directory, conf_file

_WIDTH = 110
_COLUMN = 46
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # PyYAML's in C, where it was built
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_AS_ONE = ("prepare", "steps", "settings")
"""Keys whose parts no job reads: they are named, not listed."""


def explained(command: str, line: CommandLine) -> str:
    """The help of a command, as its configuration is with the other arguments of a command line."""
    lines = [_written(command)["hydra"]["help"]["header"].strip(), ""]
    taken = dict(groups(command, line.config_directory))
    if taken:
        lines.append("Groups (GROUP=OPTION):")
        lines += [_entry(f"  {group}", ", ".join(options), 14) for group, options in taken.items()]
        lines.append("")
    lines.append("Keys (KEY=VALUE; ??? must be given):")
    lines += [_entry(f"  {text}", note, _COLUMN) for text, note in keys(command, line)]
    return "\n".join(lines)


def keys(command: str, line: CommandLine) -> Iterator[tuple[str, str]]:
    """Each key of a command with its value, as its configuration is with a command line, and what it means."""
    config = composed(command, line)
    meanings = {name: text for base in _bases(command) for name, text in _comments(base).items()}
    meanings.update({place.key: place.meaning for place in places(config) if place.meaning})
    return _keys(config, meanings)


def groups(command: str, own: str | None = None) -> Iterator[tuple[str, list[str]]]:
    """The groups that a command takes, and the options of each, those in the user's directory too."""
    for base in _bases(command):
        for entry in _written(base).get("defaults", ()):
            if isinstance(entry, Mapping):
                (group, _), *_ = entry.items()
                if not str(group).startswith("override "):
                    yield str(group), options(str(group), command, own)


def _bases(command: str) -> Iterator[str]:
    """A command's configuration and those that it begins with."""
    for entry in _written(command).get("defaults", ()):
        if isinstance(entry, str) and entry not in ("_self_", "app"):
            yield from _bases(entry)
    yield command


def _written(name: str) -> dict[str, Any]:
    text = conf_file(f"{name}.yaml").read_text(encoding="utf-8")
    written: dict[str, Any] = yaml.load(text, Loader=_LOADER)
    return written


def composed(command: str, line: CommandLine) -> dict[str, Any]:
    """A command's configuration, unresolved, composed of what the run itself would read.

    Where a group has to be chosen and is not, its first option stands for it.

    Raises:
        HydraException: what Hydra refuses.
    """
    own, name, overrides = line.config_directory, command, list(line.overrides)
    places = [str(conf_directory()), *([os.path.abspath(own)] if own is not None else [])]
    if own is not None and not os.path.isdir(own):
        raise ConfigError(f"--config-dir {own}: no such directory")
    if line.config_name is not None:
        name = line.config_name
        places = sorted(places, key=lambda place: not Path(place, f"{name}.yaml").is_file())
    overrides += [f"hydra.searchpath=[{quoted(f'file://{place}')}]" for place in places[1:]]
    begun = GlobalHydra.instance().is_initialized()  # in a sweep, Hydra runs already
    with nullcontext() if begun else initialize_config_dir(places[0], version_base=None):
        try:
            cfg = compose(name, overrides=overrides)
        except ConfigCompositionException as error:
            group = re.search(r"You must specify '([^']+)'", str(error))
            if group is None:
                raise
            first = dict(groups(command, own))[group.group(1)][0]
            cfg = compose(name, overrides=[*overrides, f"{group.group(1)}={first}"])
    container = OmegaConf.to_container(cfg, resolve=False)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def _comments(base: str) -> dict[str, str]:
    """The comment behind each top-level key of a configuration."""
    text = conf_file(f"{base}.yaml").read_text(encoding="utf-8")
    return {m.group(1): m.group(2) for m in re.finditer(r"^(\w+):[^#\n]*# (.*)$", text, re.MULTILINE)}


def _keys(config: Mapping[str, Any], meanings: Mapping[str, str], above: str = "") -> Iterator[tuple[str, str]]:
    """Each dotted key with its value, and what it means."""
    for name, value in config.items():
        if name == "_target_":
            continue
        key = f"{above}{name}"
        meaning = meanings.get(key, "")
        if isinstance(value, Mapping) and value and (above or name not in _AS_ONE):
            yield f"{key}:", meaning
            yield from _keys(value, meanings, f"{key}.")
        elif isinstance(value, Mapping) and value:
            yield f"{key}: {', '.join(map(str, value))}", meaning
        else:
            yield f"{key}: {_value(value)}", meaning


def _value(value: Any) -> str:
    text = yaml.dump(value, Dumper=_DUMPER, default_flow_style=True, width=10_000, allow_unicode=True).strip()
    return text.removesuffix("...").strip().strip("'") if not isinstance(value, dict | list) else text


def _entry(text: str, note: str, column: int) -> str:
    if not note:
        return text
    first, *rest = textwrap.wrap(note.replace("`", ""), _WIDTH - column)
    head = f"{text:<{column}}{first}" if len(text) < column - 1 else f"{text}\n{'':<{column}}{first}"
    return "\n".join([head, *(f"{'':<{column}}{line}" for line in rest)])
