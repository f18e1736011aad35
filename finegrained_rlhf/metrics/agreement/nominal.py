"""Agreement on labels, which are equal or not: percent agreement, Cohen's κ, prevalence, and Krippendorff's α, of
numbers too.

Labels are given by unit (segment) and rater, None where a rater gave none. Labels are compared as Python compares them:
True, 1 and 1.0 are one label.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any, Literal

import krippendorff

from finegrained_rlhf.metrics.detection import share

Labels = Sequence[Hashable]
"""One rater's labels, one a unit; None where the rater did not label the unit."""
Level = Literal["nominal", "interval"]
"""How far values are apart: equal or not, or by the square of their difference."""


def percent_agreement(first: Labels, second: Labels) -> float | None:
    """Share of units to which two raters give the same label, A_o = Σ_u [a_u = b_u] / n.

    It is not corrected for chance: where one label prevails it is high for people who guess.

    Args:
        first: one rater's labels, [U].
        second: the other's, [U], of the same units in the same order.

    Returns:
        A number in [0, 1] over the n units that both labelled; None where there is none.

    Raises:
        ValueError: the two differ in length, or a label is NaN or not hashable.
    """
    pairs = _paired(first, second)
    return share(sum(count for (a, b), count in pairs.items() if a == b), pairs.total())


def cohen_kappa(first: Labels, second: Labels) -> float | None:
    """Cohen's κ = (A_o − A_e) / (1 − A_e), with A_e = Σ_c (n_1c / n)(n_2c / n) from each rater's own labels.

    Source: Cohen (1960), A coefficient of agreement for nominal scales.

    Args:
        first: one rater's labels, [U].
        second: the other's, [U], of the same units in the same order.

    Returns:
        A number in [−1, 1] over the n units that both labelled. None where there is none, and where both raters use
        one and the same label only: chance then agrees always. Raters who use one label each, but different ones,
        have κ = 0.

    Raises:
        ValueError: the two differ in length, or a label is NaN or not hashable.
    """
    pairs = _paired(first, second)
    n = pairs.total()
    of_first: Counter[Hashable] = Counter()
    of_second: Counter[Hashable] = Counter()
    for (a, b), count in pairs.items():
        of_first[a] += count
        of_second[b] += count
    agreed = sum(count for (a, b), count in pairs.items() if a == b)
    by_chance = sum(count * of_second[label] for label, count in of_first.items())
    return share(n * agreed - by_chance, n * n - by_chance)


def krippendorff_alpha(ratings: Sequence[Labels], level: Level = "nominal") -> float | None:
    """Krippendorff's α = 1 − D_o / D_e for labels or numbers, any number of raters and missing values.

    A unit with m_u ≥ 2 labels, n_uc of them c, adds n_uc (n_uc − 1) / (m_u − 1) to the coincidences o_cc. With
    n = Σ_u m_u and n_c the labels c of these units, D_o = 1 − Σ_c o_cc / n and
    D_e = 1 − Σ_c n_c (n_c − 1) / (n (n − 1)). Units with fewer than two labels do not count. Of `interval` values two
    that differ by d are apart by d², of `nominal` ones by 1.

    Source: Krippendorff (2011), Computing Krippendorff's alpha-reliability; any number of observers.

    Args:
        ratings: one row of labels a rater, [R, U], of the same units in the same order.
        level: `nominal` labels, or `interval`: numbers.

    Returns:
        A number of at most 1: 0 is what chance gives, below 0 is systematic disagreement. None where fewer than two
        labels can be paired, and where all that can be paired are the same label.

    Raises:
        ValueError: the rows differ in length, or a label is NaN or not hashable.
    """
    units = [Counter(labels) for labels in _by_unit(ratings).elements() if len(labels) > 1]
    domain: list[Any] = list(sum(units, Counter()))
    if len(domain) < 2:
        return None
    counts = [[unit[label] for label in domain] for unit in units]
    values = domain if level == "interval" else range(len(domain))
    return float(krippendorff.alpha(value_counts=counts, value_domain=values, level_of_measurement=level))


def prevalence(ratings: Sequence[Labels]) -> dict[Hashable, float]:
    """Share of each label among all labels given, n_c / n: what κ and α must be read beside.

    Args:
        ratings: one row of labels a rater, [R, U]; one row for one rater's prevalence.

    Returns:
        Shares that sum to 1, the most frequent label first and equal ones in the order they come in, unit by unit;
        empty where no label is given.

    Raises:
        ValueError: the rows differ in length, or a label is NaN or not hashable.
    """
    counts: Counter[Hashable] = Counter()
    for labels, units in _by_unit(ratings).items():
        for label in labels:
            counts[label] += units
    return {label: count / counts.total() for label, count in counts.most_common()}


def _paired(first: Labels, second: Labels) -> Counter[tuple[Hashable, ...]]:
    """How many units have which two labels, of the units that both labelled."""
    return Counter({labels: units for labels, units in _by_unit([first, second]).items() if len(labels) == 2})


def _by_unit(ratings: Sequence[Labels]) -> Counter[tuple[Hashable, ...]]:
    """How many units have which labels, without the missing ones: few combinations, however many units."""
    lengths = {len(row) for row in ratings}
    if len(lengths) > 1:
        raise ValueError(f"raters must label the same units, got rows of {sorted(lengths)} labels")
    try:
        combinations = Counter(zip(*ratings, strict=True))
    except TypeError:
        raise ValueError("a label must be hashable") from None
    if any(label != label for labels in combinations for label in labels):
        raise ValueError("a label is NaN; a missing label is None")
    counts: Counter[tuple[Hashable, ...]] = Counter()
    for labels, units in combinations.items():
        counts[tuple(label for label in labels if label is not None)] += units
    return counts
