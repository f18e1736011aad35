"""Command lines of one kind: the same script, the same keys and the same options of groups."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

CONF = Path(__file__).parents[2] / "conf"


def kind_of(script: str | None, arguments: Iterable[object]) -> tuple[str | None, ...]:
    """What command lines of a kind have in common; they differ in the values of keys alone."""
    words = (str(argument).partition("=") for argument in arguments)
    return script, *sorted(key + (value if (CONF / key).is_dir() else "") for key, _, value in words)
