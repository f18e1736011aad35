"""Percentile intervals of any statistic by drawing items again with replacement (Efron, 1979).

Units of one item (segments, pairs, spans) are drawn together, so that they do not count as if they were independent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

T = TypeVar("T")


@dataclass(frozen=True)
class BootstrapInterval:
    """A statistic with its percentile interval.

    Attributes:
        value: of the items as they are; None where it is undefined.
        low: the lower border; None where there are fewer than two items, which show no variation, or where the
            statistic is undefined for all draws.
        high: the upper border; None as `low`.
        undefined: share of draws for which the statistic is undefined; the interval leaves them out, so that it says
            little where this is large. 0 where nothing is drawn.
    """

    value: float | None
    low: float | None
    high: float | None
    undefined: float


def bootstrap_interval(
    items: Sequence[T],
    statistic: Callable[[Sequence[T]], float | None],
    *,
    draws: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> BootstrapInterval:
    """The middle `level` of a statistic over samples of as many items, drawn with replacement.

    The borders are the (1 − level)/2 and (1 + level)/2 quantiles of θ(x*_1) … θ(x*_B), linear between neighbours.

    Source: Efron and Tibshirani (1993), An Introduction to the Bootstrap, section 13.3.

    Args:
        items: what is drawn: an item with all its units and all its raters.
        statistic: of a list of items, in which an item may come several times; None where it is undefined.
        draws: how many samples, B.
        level: of the interval, in (0, 1).
        seed: of the draws; the same seed draws the same items of any list of the same length.

    Returns:
        The statistic and its borders, in its unit.

    Raises:
        ValueError: there is no item, `draws` is below 1, `level` is outside (0, 1), or the statistic is infinite or
            NaN.
    """
    if not len(items):
        raise ValueError("an interval needs at least one item")
    if draws < 1 or not 0.0 < level < 1.0:
        raise ValueError(f"expected at least one draw and a level in (0, 1), got {draws} and {level}")
    value = _checked(statistic(items))
    if len(items) < 2:
        return BootstrapInterval(value, None, None, 0.0)
    rng = np.random.default_rng(seed)
    samples = (rng.integers(len(items), size=len(items)).tolist() for _ in range(draws))
    values = [_checked(statistic([items[i] for i in sample])) for sample in samples]
    known = [v for v in values if v is not None]
    if not known:
        return BootstrapInterval(value, None, None, 1.0)
    low, high = np.quantile(known, [(1 - level) / 2, (1 + level) / 2])
    return BootstrapInterval(value, float(low), float(high), 1 - len(known) / draws)


def _checked(value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise ValueError(f"a statistic that is undefined must be None, got {value}")
    return None if value is None else float(value)
