"""Numbers of best of n from one pool of samples, without drawing, and what ranks of rewards have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
SIZES = (1, 2, 4, 8, 16, 32, 64)
"""The n of best of n."""
TIE = 1e-6
"""Rewards that differ by no more are equal."""


def chances(rewards: Sequence[float], n: int) -> Array:
    """The probability of each of N samples to be the best of n that are drawn without replacement.

    The sample of rank r, from 1 for the lowest, is the best of n with C(r − 1, n − 1) / C(N, n); equal rewards share.

    Args:
        rewards: of the N samples, [N].
        n: drawn at a time, 1 to N.

    Returns:
        fp64 [N], sum 1.
    """
    values = np.asarray(rewards, float)
    order, total = np.argsort(values, kind="stable"), math.comb(len(values), n)
    by_rank = np.array([math.comb(rank, n - 1) / total for rank in range(len(values))])
    shares = np.empty(len(values))
    start = 0
    for stop in range(1, len(values) + 1):
        if stop == len(values) or values[order[stop]] - values[order[start]] > TIE:
            shares[order[start:stop]] = by_rank[start:stop].mean()
            start = stop
    return shares


def divergence(n: int) -> float:
    """KL of best of n from the policy, in nats: log n − (n − 1) / n."""
    return math.log(n) - (n - 1) / n


def spread_within(groups: Sequence[Sequence[float]]) -> float:
    """Standard deviation around the group's mean, pooled over groups."""
    return math.sqrt(float(np.mean(np.concatenate([np.asarray(g, float) - np.mean(g) for g in groups]) ** 2)))


def pair_accuracy(groups: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float:
    """Share of pairs of one group, unlike in truth, that the rewards order alike; equal rewards count half.

    Args:
        groups: of each question rewards and what is true, more is better.
    """
    right = pairs = 0.0
    for rewards, truths in groups:
        reward, truth = (np.subtract.outer(np.asarray(v, float), np.asarray(v, float)) for v in (rewards, truths))
        better = truth > TIE
        pairs += better.sum()
        right += (better & (reward > TIE)).sum() + 0.5 * (better & (np.abs(reward) <= TIE)).sum()
    return float(right / pairs) if pairs else math.nan


def ranks(values: Sequence[float]) -> Array:
    """Ranks from 0; equal values share the mean of theirs."""
    array = np.asarray(values, float)
    _, where, counts = np.unique(array, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts + 1) / 2)[where]


def spearman(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Spearman's rank correlation; None where one of the two is constant."""
    a, b = ranks(x) - ranks(x).mean(), ranks(y) - ranks(y).mean()
    scale = math.sqrt(float((a**2).sum() * (b**2).sum()))
    return None if scale == 0 else float((a * b).sum()) / scale
