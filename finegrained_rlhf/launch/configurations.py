"""How a command is typed, and where its configuration is."""

from __future__ import annotations

from pathlib import Path

from finegrained_rlhf.core.extensions import extensions


def typed(name: str) -> str:
    """A command as it is typed: `train_ppo` → `finegrained train-ppo`."""
    return f"finegrained {name.replace('_', '-')}"


def conf_directories() -> tuple[Path, ...]:
    """Where configurations are looked for, in order: ours, then those of packages that join."""
    return (conf_directory(), *(extension.conf for extension in extensions()))


def conf_file(name: str) -> Path:
    """The first file of a name below the directories of configurations; where ours would be, where there is none."""
    places = [directory / name for directory in conf_directories()]
    return next((path for path in places if path.is_file()), places[0])


def conf_directory() -> Path:
    """Where the configurations are: the copy in an installed wheel, or `conf/` of a checkout.

    Raises:
        FileNotFoundError: there is neither; the installation is incomplete.
    """
    package = Path(__file__).resolve().parents[1]
    for directory in (package / "conf", package.parent / "conf"):
        if (directory / "app.yaml").is_file():
            return directory
    raise FileNotFoundError(f"no configurations: neither {package.parent / 'conf'} nor {package / 'conf'} exists")
