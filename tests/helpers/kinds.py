"""Some of many command lines, in which every key, and every two options of groups, still stands with its script."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from itertools import combinations
from typing import TypeVar

from finegrained_rlhf.launch.configurations import conf_directories

T = TypeVar("T")


def some_of_each_kind(lines: Iterable[T], read: Callable[[T], tuple[str | None, Iterable[object]]]) -> list[T]:
    """Those that bring something: a key of its script, an option of a group, or two options together.

    Args:
        lines: the first of equal ones is taken, long ones first.
        read: the script of one, and its arguments.
    """
    parts = [(line, _parts(*read(line))) for line in lines]
    taken, seen = list[T](), set[tuple[str | None, ...]]()
    for line, own in sorted(parts, key=lambda part: -len(part[1])):
        if not own <= seen:
            taken.append(line)
            seen |= own
    return taken


def _parts(script: str | None, arguments: Iterable[object]) -> set[tuple[str | None, ...]]:
    words = [str(argument).partition("=") for argument in arguments]
    options = sorted({f"{key}={value}" for key, _, value in words if is_group(key)})
    keys = [key for key, _, _ in words if not is_group(key)]
    return {(script, *one) for one in ((), *((name,) for name in (*keys, *options)), *combinations(options, 2))}


@cache
def is_group(key: str) -> bool:
    """Whether a key chooses an option of a group."""
    return any((directory / key).is_dir() for directory in conf_directories())
