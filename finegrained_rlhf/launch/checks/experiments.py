"""Which command an experiment belongs to: its file says `# script: NAME`. Pipelines are those of
finegrained run-experiment.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.launch.command_line import CommandLine
from finegrained_rlhf.launch.configurations import conf_directories, conf_file, typed

_ALSO = {"sweep": ("sweep", "train_ppo"), "doctor": ("train_ppo",)}
"""Commands that take the experiments of another one."""
_GIVEN = re.compile(r"\+?\+?(experiment|pipeline)=(.+)")
_PIPELINES = "run_experiment"


def owner(experiment: str) -> str | None:
    """The command that an experiment of the project belongs to; None for a user's own."""
    path = conf_file(f"experiment/{experiment}.yaml")
    if not path.is_file():
        return None
    with open(path, encoding="utf-8") as lines:
        scripts = [match.group(1) for line in lines if (match := re.match(r"# script: (\w+)$", line))]
    return scripts[0] if scripts else None


def experiments_of(command: str) -> Iterator[str]:
    """The experiments that a command takes."""
    for name in _names("experiment"):
        if owner(name) in _ALSO.get(command, (command,)):
            yield name


def pipelines() -> list[str]:
    """The experiments of several steps, by the name that `finegrained run-experiment pipeline=NAME` takes."""
    return _names("pipeline")


def options(group: str, command: str, own: str | None = None) -> list[str]:
    """What a command takes as `GROUP=…`: of experiments the command's own; none where there is no such group.

    Args:
        group: its name.
        command: by name.
        own: directory of the user's configurations (`--config-dir`), whose options count as well.
    """
    names = list(experiments_of(command) if group == "experiment" else _names(group.partition("@")[0]))
    return names if own is None else list(dict.fromkeys([*names, *_names(group.partition("@")[0], Path(own))]))


def group_and_option(path: str) -> tuple[str, str]:
    """`experiment/factworld/sft` → `experiment`, `factworld/sft`; of other groups the last name is the option."""
    group, _, name = path.partition("/") if path.startswith(("experiment/", "pipeline/")) else path.rpartition("/")
    return group, name


def check_experiment(command: str, overrides: Iterable[str]) -> None:
    """Refuse an experiment of another command.

    Raises:
        ConfigError: it names the right one.
    """
    for override in overrides:
        match = _GIVEN.fullmatch(override)
        if match is None:
            continue
        group, names = match.group(1), match.group(2)
        if (group == "pipeline") != (command == _PIPELINES):
            belongs = f"; pipeline={names} belongs to {typed(_PIPELINES)}" if group == "pipeline" else ""
            own = f"pipeline=NAME, one of {', '.join(pipelines())}" if command == _PIPELINES else "experiment=NAME"
            raise ConfigError(f"{typed(command)} takes {own}{belongs}")
        for name in names.split(","):
            right = owner(name) if group == "experiment" else None
            if right is not None and right not in _ALSO.get(command, (command,)):
                raise ConfigError(f"experiment={name} belongs to {typed(right)}, not to {typed(command)}")


def check_own_options(line: CommandLine) -> None:
    """Refuse an option of the user's whose file holds nothing: it would be composed as if it were not there.

    Raises:
        ConfigError: it names the file.
    """
    for override in line.overrides:
        group, _, name = override.lstrip("+").partition("=")
        path = Path(line.config_directory or ".", group.partition("@")[0], f"{name}.yaml")
        if line.config_directory is not None and path.is_file():
            text = path.read_bytes()
            if not any(row.strip() and not row.strip().startswith(b"#") for row in text.splitlines()):
                raise ConfigError(f"file {path}: the file is empty; expected the keys of {group}={name}")


def _names(group: str, configurations: Path | None = None) -> list[str]:
    directories = conf_directories() if configurations is None else (configurations,)
    names = {
        path.relative_to(directory / group).with_suffix("").as_posix()
        for directory in directories
        for path in (directory / group).rglob("*.yaml")
    }
    return sorted(names)
