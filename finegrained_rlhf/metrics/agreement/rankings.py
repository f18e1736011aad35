"""Agreement on which of several answers is better: preferences of pairs and rankings with ties.

Of ranks, 1 is best and equal ranks are ties. Preferences of pairs stand in the order (0, 1), (0, 2), …, (1, 2), …, with
the values of the feedback records: 1 the first is better, 2 the second, 0 a tie.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, combinations

from finegrained_rlhf.metrics.agreement.nominal import cohen_kappa
from finegrained_rlhf.metrics.detection import share
from finegrained_rlhf.metrics.ranking import kendall_tau_b

TIE, FIRST, SECOND = 0, 1, 2
"""Values of a preference."""


@dataclass(frozen=True)
class OrderConsistency:
    """How the decided preferences lie to another order of the same answers.

    Attributes:
        consistent: the other order has the preferred answer before the other one.
        opposed: after it.
        tied: the other order does not decide.
    """

    consistent: int
    opposed: int
    tied: int

    @property
    def share(self) -> float | None:
        """Share consistent / (consistent + opposed), in [0, 1], one half by chance; None where both decide no pair."""
        return share(self.consistent, self.consistent + self.opposed)


def ranks_to_preferences(ranks: Sequence[float]) -> tuple[int, ...]:
    """Preferences of all pairs of answers that a ranking with ties implies.

    Args:
        ranks: one an answer, [N]; lower is better, equal is a tie, gaps mean nothing.

    Returns:
        N (N − 1) / 2 preferences, pairs in the order of `itertools.combinations`.

    Raises:
        ValueError: a rank is infinite or NaN.
    """
    _check_finite(ranks)
    return tuple(FIRST if a < b else SECOND if a > b else TIE for a, b in combinations(ranks, 2))


def preference_kappa(first: Sequence[Sequence[int]], second: Sequence[Sequence[int]]) -> float | None:
    """Cohen's κ of two people on the three values of a preference (first, second, tie), over the pairs of all items.

    Pairs of one item depend on each other; an interval must resample items.

    Args:
        first: one person's preferences, one row an item.
        second: the other's, of the same items and pairs.

    Returns:
        As `cohen_kappa`: None where both use one and the same value only, or there is no pair.

    Raises:
        ValueError: the items or their pairs differ in number, or a preference is none of 0, 1, 2.
    """
    _check_rows(first, second)
    check_preferences(chain(*first, *second))
    return cohen_kappa(list(chain(*first)), list(chain(*second)))


def mean_kendall_tau_b(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> float | None:
    """Mean over items of Kendall's τ_b of two people's rankings with ties (`metrics.ranking.kendall_tau_b`).

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


def order_consistency(preferences: Sequence[Sequence[int]], scores: Sequence[Sequence[float]]) -> OrderConsistency:
    """How many decided preferences are consistent with another order of the answers, such as their span counts.

    Ties of the preferences are left out; pairs that the other order ties are counted apart and not in the share.

    Args:
        preferences: of each item, over all pairs of its answers.
        scores: of each item, one number an answer; lower is better (number of marked errors, ranks).

    Raises:
        ValueError: the items differ in number, an item's preferences are not those of all pairs of its scores, a
            preference is none of 0, 1, 2, or a score is infinite or NaN.
    """
    if len(preferences) != len(scores):
        raise ValueError(f"expected the same items, got {len(preferences)} and {len(scores)}")
    check_preferences(chain(*preferences))
    others = [ranks_to_preferences(row) for row in scores]
    _check_rows(preferences, others)
    pairs = [pair for pair in zip(chain(*preferences), chain(*others), strict=True) if pair[0] != TIE]
    return OrderConsistency(
        consistent=sum(ours == other for ours, other in pairs),
        opposed=sum(other not in (ours, TIE) for ours, other in pairs),
        tied=sum(other == TIE for _, other in pairs),
    )


def check_preferences(values: Iterable[int]) -> None:
    """Refuse what is no preference.

    Raises:
        ValueError: a value is none of 0, 1, 2.
    """
    for value in values:
        if value not in (TIE, FIRST, SECOND):
            raise ValueError(f"a preference is 0 (tie), 1 (first better) or 2 (second better), got {value!r}")


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
