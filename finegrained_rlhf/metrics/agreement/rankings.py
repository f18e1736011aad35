"""Agreement on which of several answers is better: preferences of pairs, rankings with ties, and whether the answer
that was shown first wins more often than chance.

Of ranks, 1 is best and equal ranks are ties. Preferences of pairs stand in the order (0, 1), (0, 2), …, (1, 2), …, with
the values of the feedback records: 1 the first is better, 2 the second, 0 a tie.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, combinations

import numpy as np

from finegrained_rlhf.metrics.detection import share
from finegrained_rlhf.metrics.functions import kendall_tau_b

TIE, FIRST, SECOND = 0, 1, 2
"""Values of a preference."""


def mean_kendall_tau_b(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> float | None:
    """Mean over items of Kendall's τ_b of two people's rankings with ties (`metrics.functions.kendall_tau_b`).

    Args:
        first: one person's ranks, one row an item.
        second: the other's, of the same items and answers.

    Returns:
        A number in [−1, 1]: the mean over the items where both rank some answer above another; None where there is no
        such item.

    Raises:
        ValueError: the items or their answers differ in number, or a rank is infinite or NaN.
    """
    _check_rows(first, second)
    _check_finite(chain(*first, *second))
    values = [tau for x, y in zip(first, second, strict=True) if (tau := kendall_tau_b(x, y)) is not None]
    return share(math.fsum(values), len(values))


@dataclass(frozen=True)
class OrderBias:
    """How often the answer shown first wins a decided pair.

    Attributes:
        wins: decided pairs that it wins.
        decided: all decided pairs.
        pair_p: exact two-sided binomial p of a fair coin a pair; None without a decided pair. Pairs of one item are
            not independent (three or more answers in one order), so it is too small where items have several pairs.
        item_p: exact two-sided p of a fair coin an item, which turns all its pairs around together; None without a
            decided pair. It equals `pair_p` where every item has one pair, and is valid where items have several.
    """

    wins: int
    decided: int
    pair_p: float | None
    item_p: float | None

    @property
    def share(self) -> float | None:
        """Share wins / decided, in [0, 1], one half without bias; None without a decided pair."""
        return share(self.wins, self.decided)


def order_bias(preferences: Sequence[Sequence[int]], shown: Sequence[Sequence[int]]) -> OrderBias:
    """The share of decided pairs that the answer shown first wins, with exact tests of one half.

    With W wins of n decided pairs, `pair_p` = P(|X − n/2| ≥ |W − n/2|), X ~ Binomial(n, 1/2). With d_i the wins minus
    the losses of the first shown in item i, `item_p` = P(|Σ ε_i d_i| ≥ |Σ d_i|), ε_i = ±1 with equal chance (sign
    flips, Fisher, 1935): without bias, the reversed order of display would have been as probable.

    Args:
        preferences: of each item, over all pairs of its N answers in the order of `itertools.combinations`: 1 first
            better, 2 second better, 0 a tie.
        shown: of each item, the numbers 0 … N − 1 of its answers in the order in which they were shown.

    Raises:
        ValueError: the items differ in number, `shown` is no order of 0 … N − 1, an item has not one preference a
            pair, or a preference is none of 0, 1, 2.
    """
    from scipy.stats import binomtest

    if len(preferences) != len(shown):
        raise ValueError(f"expected the same items, got {len(preferences)} and {len(shown)}")
    results = [_first_wins(item, row, order) for item, (row, order) in enumerate(zip(preferences, shown, strict=True))]
    wins, decided = sum(map(sum, results)), sum(map(len, results))
    if not decided:
        return OrderBias(0, 0, None, None)
    item_p = _sign_flip_p([2 * sum(row) - len(row) for row in results])
    return OrderBias(wins, decided, float(binomtest(wins, decided).pvalue), item_p)


def _check_rows(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> None:
    first_lengths, second_lengths = [len(row) for row in first], [len(row) for row in second]
    if len(first_lengths) != len(second_lengths):
        raise ValueError(f"expected the same items, got {len(first_lengths)} and {len(second_lengths)}")
    for item, (a, b) in enumerate(zip(first_lengths, second_lengths, strict=True)):
        if a != b:
            raise ValueError(f"item {item}: expected as many values of both, got {a} and {b}")


def _check_finite(values: Iterable[float]) -> None:
    for value in values:
        if not math.isfinite(value):
            raise ValueError(f"expected finite numbers, got {value!r}")


def _check_preferences(values: Iterable[int]) -> None:
    for value in values:
        if value not in (TIE, FIRST, SECOND):
            raise ValueError(f"a preference is 0 (tie), 1 (first better) or 2 (second better), got {value!r}")


def _first_wins(item: int, preferences: Sequence[int], shown: Sequence[int]) -> list[bool]:
    """Of each decided pair whether the answer that was shown first wins."""
    n = len(shown)
    if sorted(shown) != list(range(n)):
        raise ValueError(f"item {item}: shown must be an order of the answers 0 to {n - 1}, got {list(shown)}")
    if len(preferences) != n * (n - 1) // 2:
        raise ValueError(f"item {item}: {n} answers have {n * (n - 1) // 2} pairs, got {len(preferences)} preferences")
    _check_preferences(preferences)
    place = {answer: position for position, answer in enumerate(shown)}
    wins = []
    for (i, j), value in zip(combinations(range(n), 2), preferences, strict=True):
        if value != TIE:
            wins.append((place[i] < place[j]) == (value == FIRST))
    return wins


def _sign_flip_p(differences: Sequence[int]) -> float:
    """P(|Σ ε_i d_i| ≥ |Σ d_i|) over all signs: the distribution of the sum, one item after another."""
    sizes = [abs(difference) for difference in differences if difference]
    reach = sum(sizes)
    chance = np.zeros(2 * reach + 1)  # of the sums −reach … reach
    chance[reach] = 1.0
    for size in sizes:
        chance = (np.roll(chance, size) + np.roll(chance, -size)) / 2  # the borders are still 0: nothing comes around
    sums = np.abs(np.arange(-reach, reach + 1))
    return min(1.0, float(chance[sums >= abs(sum(differences))].sum()))
