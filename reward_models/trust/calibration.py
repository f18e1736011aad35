"""Reliability curve and expected calibration error: does a probability of 0.8 come true in 80% of the cases?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

BINS = 10


@dataclass(frozen=True)
class ReliabilityBin:
    """Items whose probability lies in (low, high]; the first bin holds `low` too.

    Attributes:
        low: lower edge.
        high: upper edge.
        count: items.
        predicted: mean probability; None of an empty bin.
        observed: share of items whose outcome came true; None of an empty bin.
    """

    low: float
    high: float
    count: int
    predicted: float | None
    observed: float | None


@dataclass(frozen=True)
class Calibration:
    """A reliability curve.

    Attributes:
        ece: expected calibration error, Σ_b n_b / n · |observed_b − predicted_b|; None without items.
        bins: of equal width, low to high.
    """

    ece: float | None
    bins: tuple[ReliabilityBin, ...]


def calibration(
    probabilities: Sequence[float], outcomes: Sequence[bool], low: float = 0.0, high: float = 1.0, bins: int = BINS
) -> Calibration:
    """The reliability curve in bins of equal width, and its ECE.

    Source: Guo et al. 2017, On Calibration of Modern Neural Networks, section 2 (bins open below, closed above).
    They bin the confidence in the predicted class; with the probability of one class of two and its observed share,
    as for segments here, this is the reliability diagram of DeGroot and Fienberg 1983.

    Args:
        probabilities: n numbers in [low, high].
        outcomes: n flags: what the probability was of came true.
        low: least probability possible (0.5 for that of the more probable of two).
        high: greatest.
        bins: number of bins.

    Raises:
        ValueError: the lengths differ, or a probability lies outside [low, high].
    """
    p, y = np.asarray(probabilities, dtype=np.float64), np.asarray(outcomes, dtype=np.float64)
    if p.ndim != 1 or p.shape != y.shape:
        raise ValueError(f"expected probabilities and outcomes of one length, got {p.shape} and {y.shape}")
    if not ((p >= low) & (p <= high)).all():
        raise ValueError(f"expected probabilities between {low} and {high}")
    edges = low + (high - low) * np.arange(bins + 1) / bins
    where = np.searchsorted(edges[1:-1], p, side="left")
    counts = np.bincount(where, minlength=bins)
    sums_p, sums_y = np.bincount(where, p, minlength=bins), np.bincount(where, y, minlength=bins)
    rows = tuple(
        ReliabilityBin(
            low=float(edges[i]),
            high=float(edges[i + 1]),
            count=int(counts[i]),
            predicted=float(sums_p[i] / counts[i]) if counts[i] else None,
            observed=float(sums_y[i] / counts[i]) if counts[i] else None,
        )
        for i in range(bins)
    )
    ece = float(np.abs(sums_y - sums_p).sum() / len(p)) if len(p) else None
    return Calibration(ece, rows)
