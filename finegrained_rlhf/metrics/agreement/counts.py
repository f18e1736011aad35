"""Matches between what two people marked, and F1 of them: of one text, pooled over texts and averaged over them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from finegrained_rlhf.metrics.detection import share


@dataclass(frozen=True)
class MatchCounts:
    """How many marks two people made and how many of them match one to one.

    Attributes:
        matched: pairs that match.
        first: marks of the first person (spans, characters or elements of a set).
        second: marks of the second.

    Raises:
        ValueError: a count is below 0, or more pairs match than one of them has marks.
    """

    matched: int
    first: int
    second: int

    def __post_init__(self) -> None:
        if not 0 <= self.matched <= min(self.first, self.second):
            raise ValueError(f"{self.matched} matches of {self.first} and {self.second} marks cannot be")

    @property
    def f1(self) -> float:
        """F1 = 2·matched / (first + second), in [0, 1]; the same whoever of the two is taken as the truth.

        Two empty sets give 1: two people who both mark nothing agree. One empty set gives 0.
        """
        return 2 * self.matched / (self.first + self.second) if self.first + self.second else 1.0

    def __add__(self, other: MatchCounts) -> MatchCounts:
        """The counts of two texts together."""
        return MatchCounts(self.matched + other.matched, self.first + other.first, self.second + other.second)


def pooled_f1(counts: Iterable[MatchCounts]) -> float | None:
    """Micro-averaged F1 = 2 Σ matched / Σ (first + second): every mark counts once, in whichever text it is.

    Texts in which both mark nothing change nothing. Without true negatives it is the limit of κ as the number of
    unmarked candidates grows (Hripcsak and Rothschild, 2005, Agreement, the F-measure, and reliability).

    Args:
        counts: of each text.

    Returns:
        A number in [0, 1]; None where nobody marked anything in any text, which is no evidence of agreement on marks.
    """
    total = sum(counts, MatchCounts(0, 0, 0))
    return share(2 * total.matched, total.first + total.second)


def mean_f1(counts: Iterable[MatchCounts]) -> float | None:
    """Macro-averaged F1, the mean of `MatchCounts.f1` over texts: every text counts once.

    Texts in which both mark nothing count 1.

    Args:
        counts: of each text.

    Returns:
        A number in [0, 1]; None without texts.
    """
    values = [count.f1 for count in counts]
    return share(math.fsum(values), len(values))
