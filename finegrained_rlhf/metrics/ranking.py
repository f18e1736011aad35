"""How alike two rankings and two series of numbers are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations


def kendall_tau_b(x: Sequence[float], y: Sequence[float], tie: float = 0.0) -> float | None:
    """Kendall's τ_b = (C − D) / √((C + D + X)(C + D + Y)) over all pairs of items.

    C pairs are ordered alike by x and y, D the other way round, X are tied in x alone and Y in y alone.

    Source: Kendall (1945), The treatment of ties in ranking problems.

    Args:
        x: one number an item.
        y: one number an item.
        tie: numbers that differ by no more are tied.

    Returns:
        A number in [−1, 1]; None where x or y ties all pairs, or there is none.

    Raises:
        ValueError: x and y differ in length.
    """
    alike = opposed = only_x = only_y = 0
    for (x_i, y_i), (x_j, y_j) in combinations(zip(x, y, strict=True), 2):
        tied_x, tied_y = abs(x_i - x_j) <= tie, abs(y_i - y_j) <= tie
        if tied_x or tied_y:
            only_x += tied_x and not tied_y
            only_y += tied_y and not tied_x
        elif (x_i < x_j) == (y_i < y_j):
            alike += 1
        else:
            opposed += 1
    ordered = alike + opposed
    size = math.sqrt((ordered + only_x) * (ordered + only_y))
    return (alike - opposed) / size if size else None


def correlation(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Pearson's r = Cov(x, y) / √(Var(x) Var(y)); None where x or y does not vary.

    Raises:
        ValueError: x and y differ in length.
    """
    both, of_x, of_y = covariance(x, y), covariance(x, x), covariance(y, y)
    return both / math.sqrt(of_x * of_y) if of_x > 0 and of_y > 0 else None


def covariance(x: Sequence[float], y: Sequence[float]) -> float:
    """Population covariance Σ (x − μ_x)(y − μ_y) / n; 0 of nothing.

    Raises:
        ValueError: x and y differ in length.
    """
    if not len(x):
        return 0.0
    mean_x, mean_y = math.fsum(x) / len(x), math.fsum(y) / len(y)
    return math.fsum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / len(x)
