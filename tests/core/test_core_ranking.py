"""Rank correlation with ties and covariance, by hand and against Kendall's general coefficient."""

import itertools
import math
import random

import pytest

from finegrained_rlhf.metrics.functions import correlation, covariance, kendall_tau_b


@pytest.mark.parametrize(
    ("x", "y", "tau"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 40], 1.0),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1.0),
        # six pairs, of which only the middle one is opposed: (5 − 1) / 6
        ([1, 2, 3, 4], [1, 3, 2, 4], 4 / 6),
        # x ties the first two: 5 ordered pairs in x, 6 in y, all 5 alike.
        ([1, 1, 2, 3], [1, 2, 3, 4], 5 / math.sqrt(5 * 6)),
        # both tie the same pair: it counts for neither.
        ([1, 1, 2], [5, 5, 6], 1.0),
        # x ties (0, 1), y ties (1, 2), the pair (0, 2) is alike.
        ([1, 1, 2], [1, 2, 2], 1 / 2),
        ([1, 1, 1], [1, 2, 3], None),
        ([1, 2, 3], [2, 2, 2], None),
        ([1], [2], None),
        ([], [], None),
    ],
)
def test_tau_by_hand(x: list[float], y: list[float], tau: float | None) -> None:
    assert kendall_tau_b(x, y) == (None if tau is None else pytest.approx(tau))
    assert kendall_tau_b(y, x) == (None if tau is None else pytest.approx(tau))


def test_tau_is_the_cosine_of_the_signs_of_all_ordered_pairs() -> None:
    """Kendall's own general coefficient: Σ a_ij b_ij / √(Σ a_ij² Σ b_ij²) with the signs of the differences."""
    drawn = random.Random(0)
    for _ in range(50):
        x, y = ([drawn.randint(0, 4) for _ in range(7)] for _ in range(2))

        def signs(values: list[int]) -> list[int]:
            return [(a > b) - (a < b) for a, b in itertools.product(values, repeat=2)]

        dot = sum(a * b for a, b in zip(signs(x), signs(y), strict=True))
        size = math.hypot(*signs(x)) * math.hypot(*signs(y))
        assert kendall_tau_b(x, y) == (pytest.approx(dot / size) if size else None)


def test_what_differs_by_less_than_a_tie_is_tied() -> None:
    assert kendall_tau_b([0.0, 1e-9, 1.0], [2.0, 1.0, 3.0]) == pytest.approx(1 / 3)
    assert kendall_tau_b([0.0, 1e-9, 1.0], [2.0, 1.0, 3.0], tie=1e-6) == pytest.approx(2 / math.sqrt(2 * 3))


def test_covariance_and_correlation_by_hand() -> None:
    # means 2 and 4; products of deviations (-1)(-3), 0, (1)(3) over three numbers
    assert covariance([1, 2, 3], [1, 4, 7]) == pytest.approx(2.0)
    assert correlation([1, 2, 3], [1, 4, 7]) == pytest.approx(1.0)
    # deviations (-1, 0, 1) and (1, -2, 1): uncorrelated
    assert correlation([1, 2, 3], [2, -1, 2]) == pytest.approx(0.0)
    assert correlation([1, 1, 1], [1, 2, 3]) is None and correlation([], []) is None
    assert covariance([], []) == 0.0
    for measure in (kendall_tau_b, correlation, covariance):
        with pytest.raises(ValueError, match="zip"):
            measure([1, 2], [1, 2, 3])
