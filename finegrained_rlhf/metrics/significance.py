"""What chance may have made: intervals of any statistic, and tests of the difference of two systems.

Intervals are percentiles over items drawn again with replacement (Efron, 1979). Tests ask whether the mean difference
of two systems over the same questions is more than chance.

Units of one item (segments, pairs, spans) are drawn together, so that they do not count as if they were independent.
Questions of one dialogue depend on one another too: dialogues, not questions, are what chance deals out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
_CHUNK = 1 << 22  # signs drawn at once
_EXACT = 12  # with so many clusters or fewer, every assignment of signs is gone through


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


@dataclass(frozen=True)
class PairedTest:
    """Two tests of one difference.

    Attributes:
        difference: mean over the questions, in the metric's unit.
        clusters: how many clusters of questions there are.
        t: the difference over its cluster-robust standard error; None with fewer than two clusters, or where all
            clusters differ alike.
        p_t: two-sided p-value of `t` with `clusters − 1` degrees of freedom; None as `t`.
        p_randomization: two-sided p-value of the randomization test.
    """

    difference: float
    clusters: int
    t: float | None
    p_t: float | None
    p_randomization: float


def paired_test(
    differences: Sequence[float], clusters: Sequence[Hashable], *, draws: int = 10_000, seed: int = 0
) -> PairedTest:
    """Both tests of the hypothesis that the two systems are exchangeable.

    Args:
        differences: of each question, the first system's value less the second's, [Q].
        clusters: the cluster of each question, [Q].
        draws: random assignments of signs, where not all are gone through.
        seed: of the draws.

    Raises:
        ValueError: there is no question, the two differ in length, or `draws` is below 1.
    """
    sums, sizes = cluster_sums(differences, clusters)
    t, p_t = clustered_t(sums, sizes)
    p_randomization = randomization_p(sums, draws=draws, seed=seed)
    return PairedTest(float(sums.sum() / sizes.sum()), len(sums), t, p_t, p_randomization)


def cluster_sums(
    values: Sequence[float], clusters: Sequence[Hashable]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The sum of the values of each cluster and how many they are, [C] each, clusters in order of appearance.

    Raises:
        ValueError: there is no value, or the two differ in length.
    """
    if not len(values) or len(values) != len(clusters):
        raise ValueError(f"expected values with a cluster each, got {len(values)} and {len(clusters)}")
    by_cluster: dict[Hashable, list[float]] = {}
    for value, cluster in zip(values, clusters, strict=True):
        by_cluster.setdefault(cluster, []).append(value)
    return np.array([math.fsum(of) for of in by_cluster.values()]), np.array(
        [float(len(of)) for of in by_cluster.values()]
    )


def clustered_t(sums: NDArray[np.float64], sizes: NDArray[np.float64]) -> tuple[float | None, float | None]:
    """The paired t-test with a standard error that is robust to clusters, and its two-sided p-value.

    d̄ = Σ_c S_c / N, se² = C / (C − 1) · Σ_c (S_c − n_c d̄)² / N², t = d̄ / se with C − 1 degrees of freedom. With one
    question a cluster it is Student's paired t-test.

    Source: Cameron and Miller (2015), A Practitioner's Guide to Cluster-Robust Inference, eqs. 10–12 and section VI.D.

    Args:
        sums: of the differences S_c of each cluster, [C].
        sizes: questions n_c of each cluster, [C].

    Returns:
        t and p; None, None with fewer than two clusters or where the standard error is 0.
    """
    from scipy.special import stdtr

    count, total = len(sums), float(sizes.sum())
    mean = float(sums.sum()) / total
    residuals = sums - sizes * mean
    square = count / (count - 1) * float(residuals @ residuals) / total**2 if count > 1 else 0.0
    if square <= 1e-24:  # rounding of equal differences
        return None, None
    t = mean / math.sqrt(square)
    return t, float(2 * stdtr(count - 1, -abs(t)))


def randomization_p(sums: NDArray[np.float64], *, draws: int = 10_000, seed: int = 0) -> float:
    """The two-sided p-value of the paired randomization test: the two systems are exchanged cluster by cluster.

    p = (1 + #{b: |Σ_c s_bc S_c| ≥ |Σ_c S_c|}) / (1 + B) over B random signs s; with 12 clusters or fewer the share
    of all 2^C assignments, and no chance. A p-value of a draw cannot fall below 1 / (B + 1).

    Source: Fisher (1935); Smucker, Allan and Carterette (2007), A Comparison of Statistical Significance Tests for
    Information Retrieval Evaluation; Phipson and Smyth (2010) for the 1 in the numerator.

    Args:
        sums: of the differences S_c of each cluster, [C].
        draws: random assignments of signs, B.
        seed: of the draws.

    Raises:
        ValueError: there is no cluster, or `draws` is below 1.
    """
    if not len(sums) or draws < 1:
        raise ValueError(f"expected clusters and at least one draw, got {len(sums)} and {draws}")
    least = abs(float(sums.sum())) - 1e-9 * float(np.abs(sums).sum())  # sums in another order round otherwise
    if len(sums) <= _EXACT:
        bits = (np.arange(2 ** len(sums))[:, None] >> np.arange(len(sums))) & 1
        return float(np.mean(np.abs((2.0 * bits - 1.0) @ sums) >= least))
    rng = np.random.default_rng(seed)
    extreme, left = 0, draws
    while left:
        rows = min(left, max(1, _CHUNK // len(sums)))
        signs = rng.integers(0, 2, size=(rows, len(sums)), dtype=np.int8) * 2.0 - 1.0
        extreme += int(np.count_nonzero(np.abs(signs @ sums) >= least))
        left -= rows
    return (1 + extreme) / (1 + draws)


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values of m tests corrected so that the chance of any false rejection stays at the level that one is read at.

    Sorted upwards, p̃_(i) = max_{j ≤ i} min(1, (m − j + 1) p_(j)).

    Source: Holm (1979), A Simple Sequentially Rejective Multiple Test Procedure.

    Args:
        p_values: of each test, in [0, 1].

    Returns:
        The corrected ones, in the order given.
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected, highest = [0.0] * len(p_values), 0.0
    for place, i in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - place) * p_values[i]))
        corrected[i] = highest
    return corrected
