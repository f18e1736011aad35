"""Which command an experiment belongs to: the second line of its file says `# script: NAME`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.launch.commands import conf_directory

_ALSO = {"sweep": ("sweep", "train_ppo"), "doctor": ("train_ppo",)}
"""Commands that take the experiments of another one."""
_GIVEN = re.compile(r"\+?\+?experiment=(.+)")


def owner(experiment: str) -> str | None:
    """The command that an experiment of the project belongs to; None for a user's own."""
    path = _directory() / f"{experiment}.yaml"
    if not path.is_file():
        return None
    with open(path, encoding="utf-8") as lines:
        said = [match.group(1) for line in lines if (match := re.match(r"# script: (\w+)$", line))]
    return said[0] if said else None


def experiments_of(command: str) -> Iterator[str]:
    """The experiments that a command takes."""
    for path in sorted(_directory().rglob("*.yaml")):
        name = path.relative_to(_directory()).with_suffix("").as_posix()
        if owner(name) in _ALSO.get(command, (command,)):
            yield name


def check_experiment(command: str, overrides: Iterable[str]) -> None:
    """Refuse an experiment of another command.

    Raises:
        ConfigError: it names the right one.
    """
    for override in overrides:
        match = _GIVEN.fullmatch(override)
        for name in match.group(1).split(",") if match else ():
            right = owner(name)
            if right is not None and right not in _ALSO.get(command, (command,)):
                raise ConfigError(f"experiment={name} belongs to {right}.py, not to {command}.py")


def _directory() -> Path:
    return conf_directory() / "experiment"
