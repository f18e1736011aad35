"""Sets of remarks without a conflict: the longest recent run, a greedy set, the largest set (Sun et al., 5.5).

Algorithms 1 and 2 are the paper's. Its objective for the second, max |s| with the newest remark in s, is not what
algorithm 2 computes: that takes each older remark as soon as it fits what it has, and so may shut out several others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
HasConflict = Callable[[Sequence[T], T], bool]
"""Whether a remark contradicts those that were chosen (the oldest first)."""
LARGEST_EXACT = 16
"""Remarks among which the largest set is looked for, the newest: there are 2^(n−1) sets with the newest one."""


@dataclass(frozen=True)
class CoresetSelection:
    """What was chosen of n remarks.

    Attributes:
        chosen: places in the list, from 0, in ascending order.
        satisfiable: whether the newest remark is without conflict by itself; True where there is no remark. Where it is
            False, no set with the newest remark is consistent: `recency_coreset` and `largest_coreset` choose nothing,
            and `greedy_coreset` what it finds among the older ones.
    """

    chosen: tuple[int, ...]
    satisfiable: bool = True


def recency_coreset(remarks: Sequence[T], has_conflict: HasConflict[T]) -> CoresetSelection:
    """Algorithm 1: the longest run up to the newest remark that has no conflict.

    Args:
        remarks: f_1 to f_n, the oldest first.
        has_conflict: of a remark with those after it.
    """
    begin = len(remarks)
    for i in reversed(range(len(remarks))):
        if has_conflict(remarks[begin:], remarks[i]):
            break
        begin = i
    return CoresetSelection(tuple(range(begin, len(remarks))), begin < len(remarks) or not remarks)


def greedy_coreset(remarks: Sequence[T], has_conflict: HasConflict[T]) -> CoresetSelection:
    """Algorithm 2 as printed: from the newest to the oldest, every remark that does not contradict what was chosen.

    Args:
        remarks: f_1 to f_n, the oldest first.
        has_conflict: of a remark with those chosen so far.
    """
    chosen: list[int] = []
    for i in reversed(range(len(remarks))):
        if not has_conflict([remarks[j] for j in chosen], remarks[i]):
            chosen.insert(0, i)
    return CoresetSelection(tuple(chosen), not remarks or len(remarks) - 1 in chosen)


def largest_coreset(remarks: Sequence[T], has_conflict: HasConflict[T], limit: int = LARGEST_EXACT) -> CoresetSelection:
    """Exactly max |s| over consistent s with the newest remark; of equally large ones the most recent.

    A set is consistent where none of its remarks contradicts those of it that are newer. Of two sets of one size, that
    with the newer remark at the first place where they differ, from the newest on, is taken.

    Args:
        remarks: f_1 to f_n, the oldest first.
        has_conflict: of a remark with newer ones.
        limit: the newest so many are looked at, since there may be 2^(limit − 1) questions.
    """
    if not remarks:
        return CoresetSelection(())
    oldest = max(0, len(remarks) - limit)
    best: tuple[int, ...] = ()

    def visit(i: int, chosen: tuple[int, ...]) -> None:
        nonlocal best
        if len(chosen) + i + 1 - oldest <= len(best):
            return
        if i < oldest:
            best = chosen
            return
        if not has_conflict([remarks[j] for j in chosen], remarks[i]):
            visit(i - 1, (i, *chosen))
        if i < len(remarks) - 1:
            visit(i - 1, chosen)

    visit(len(remarks) - 1, ())
    return CoresetSelection(best, bool(best))
