"""Confidence intervals of shares and means by drawing questions again (the percentile bootstrap, Efron 1979).

Knows numbers, one a question. What depends on one question is drawn together, so that its segments do not count as if
they were independent.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

DRAWS = 10_000
"""Samples of the questions; the borders of an interval move by about .01 of its width from one seed to another."""
LEVEL = 0.95
Interval = tuple[float, float]


def share_interval(found: Sequence[float], of: Sequence[float], seed: int = 0) -> Interval:
    """The 95% interval of Σ found / Σ of.

    Args:
        found: of each question, [Q].
        of: how many each question has, [Q]; a mean over questions has 1 everywhere.
        seed: of the draws.

    Returns:
        Its lower and upper border; NaN where there is nothing to count.

    Raises:
        ValueError: the two have different lengths, or there is no question.
    """
    shares = _shares(_drawn(len(found), seed), found, of)
    return _borders(shares)


def difference_interval(
    ours: tuple[Sequence[float], Sequence[float]], theirs: tuple[Sequence[float], Sequence[float]], seed: int = 0
) -> Interval:
    """The 95% interval of the difference of two shares over the same questions, which are drawn together.

    Args:
        ours: `found` and `of`, [Q] each.
        theirs: the same of the system that is taken away, in the same order of questions.
        seed: of the draws.

    Raises:
        ValueError: they differ in length, or there is no question.
    """
    if len(ours[0]) != len(theirs[0]):
        raise ValueError(f"expected the same questions, got {len(ours[0])} and {len(theirs[0])}")
    drawn = _drawn(len(ours[0]), seed)
    return _borders(_shares(drawn, *ours) - _shares(drawn, *theirs))


def _drawn(questions: int, seed: int) -> NDArray[np.float64]:
    """How often each question is in each sample, [draws, Q]."""
    if questions < 1:
        raise ValueError("an interval needs at least one question")
    rng = np.random.default_rng(seed)
    return rng.multinomial(questions, np.full(questions, 1 / questions), size=DRAWS).astype(np.float64)


def _shares(drawn: NDArray[np.float64], found: Sequence[float], of: Sequence[float]) -> NDArray[np.float64]:
    if len(found) != len(of):
        raise ValueError(f"expected two numbers a question, got {len(found)} and {len(of)}")
    with np.errstate(invalid="ignore", divide="ignore"):
        return (drawn @ np.asarray(found, float)) / (drawn @ np.asarray(of, float))


def _borders(values: NDArray[np.float64]) -> Interval:
    outside = (1 - LEVEL) / 2
    known = values[np.isfinite(values)]
    if not known.size:
        return float("nan"), float("nan")
    low, high = np.quantile(known, [outside, 1 - outside])
    return float(low), float(high)
