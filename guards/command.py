"""What the command lines of the guards share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from finegrained_rlhf.core.errors import ConfigError

ROOT = Path(__file__).resolve().parents[1]
"""Of the tree in which the guards stand."""


def chosen(names: Sequence[str], only: str | None) -> list[str]:
    """The names that `only=NAME,NAME` keeps, in their own order; all without it.

    Raises:
        ConfigError: a name that is none of them.
    """
    wanted = list(names) if only is None else only.split(",")
    for name in wanted:
        if name not in names:
            raise ConfigError(f"only={name}: no such name; expected some of {', '.join(names)}")
    return [name for name in names if name in wanted]
