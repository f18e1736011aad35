"""Confidence intervals of shares and means by drawing questions again (the percentile bootstrap, Efron 1979).

What depends on one question is drawn together, so that its segments do not count as if they were independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

DRAWS = 10_000
"""Samples of the questions; the borders of an interval move by about .01 of its width from one seed to another."""
LEVEL = 0.95
Interval = tuple[float, float]


def resampled(sums: NDArray[np.float64], seed: int = 0) -> NDArray[np.float64]:
    """What each question adds, summed over questions that are drawn again with replacement.

    Args:
        sums: one row a question, [Q, …].
        seed: of the draws; the same seed draws the same questions, of any sums with as many rows.

    Returns:
        [draws, …].

    Raises:
        ValueError: there is no question.
    """
    if not len(sums):
        raise ValueError("an interval needs at least one question")
    return np.tensordot(_drawn(len(sums), seed), sums, axes=1)


@lru_cache(maxsize=2)
def _drawn(questions: int, seed: int) -> NDArray[np.float64]:
    """How often each question is drawn, [draws, Q]; a table asks for the same draws many times."""
    share = np.full(questions, 1 / questions)
    drawn = np.random.default_rng(seed).multinomial(questions, share, size=DRAWS).astype(np.float64)
    drawn.flags.writeable = False
    return drawn


def borders(values: NDArray[np.float64]) -> Interval:
    """Lower and upper border of the middle 95% of values, [draws]; what is not finite is left out; NaN of nothing."""
    known = values[np.isfinite(values)]
    if not known.size:
        return float("nan"), float("nan")
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def share_interval(parts: Sequence[float], of: Sequence[float], seed: int = 0) -> Interval:
    """The 95% interval of Σ found / Σ of.

    Args:
        parts: of each question, [Q].
        of: how many each question has, [Q]; a mean over questions has 1 everywhere.
        seed: of the draws.

    Returns:
        Its borders; NaN where there is nothing to count.

    Raises:
        ValueError: the two have different lengths, or there is no question.
    """
    return borders(_shares(parts, of, seed))


def difference_interval(
    ours: tuple[Sequence[float], Sequence[float]], theirs: tuple[Sequence[float], Sequence[float]], seed: int = 0
) -> Interval:
    """The 95% interval of the difference of two shares over the same questions, which are drawn together.

    Args:
        ours: `parts` and `of`, [Q] each.
        theirs: the same of the system that is taken away, in the same order of questions.
        seed: of the draws.

    Raises:
        ValueError: they differ in length, or there is no question.
    """
    if len(ours[0]) != len(theirs[0]):
        raise ValueError(f"expected the same questions, got {len(ours[0])} and {len(theirs[0])}")
    return borders(_shares(*ours, seed) - _shares(*theirs, seed))


def _shares(parts: Sequence[float], of: Sequence[float], seed: int) -> NDArray[np.float64]:
    if len(parts) != len(of):
        raise ValueError(f"expected two numbers a question, got {len(parts)} and {len(of)}")
    drawn = resampled(np.stack([np.asarray(parts, float), np.asarray(of, float)], axis=1), seed)
    with np.errstate(invalid="ignore", divide="ignore"):
        return drawn[:, 0] / drawn[:, 1]


def crossed_interval(ours: NDArray[np.float64], theirs: NDArray[np.float64], seed: int = 0) -> Interval:
    """The 95% interval of a mean difference over questions and training seeds, both drawn again (crossed bootstrap).

    Every seed answers every question: of a draw each pair of a seed and a question counts as often as the one was drawn
    times as often as the other, so that neither a question's nor a seed's values count as if they were independent.

    Args:
        ours: of each seed and question, [S, Q]; NaN where there is nothing to count.
        theirs: the same of the system that is taken away.
        seed: of the draws.

    Raises:
        ValueError: they differ in shape, or there is no seed or question.
    """
    if ours.shape != theirs.shape or not ours.size:
        raise ValueError(f"expected the same seeds and questions, some of each; got {ours.shape} and {theirs.shape}")
    gaps = ours - theirs
    known = np.isfinite(gaps)
    by_question = resampled(
        np.stack([np.where(known, gaps, 0.0), known.astype(np.float64)], axis=-1).swapaxes(0, 1), seed
    )
    seeds = _drawn(len(gaps), seed + 1)
    total, count = (np.einsum("ds,ds->d", seeds, by_question[:, :, part]) for part in (0, 1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return borders(total / count)
