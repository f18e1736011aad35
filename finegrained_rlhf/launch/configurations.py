"""How a command is typed, and where its configuration is."""

from __future__ import annotations

from pathlib import Path


def typed(name: str) -> str:
    """A command as it is typed: `train_ppo` → `finegrained train-ppo`."""
    return f"finegrained {name.replace('_', '-')}"


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
