"""Preferences and rankings: hand numbers, naive loops and SciPy; the tests of order bias."""

from __future__ import annotations

import math
from itertools import combinations, product

import numpy as np
import pytest
from scipy import stats

from finegrained_rlhf.feedback import records
from finegrained_rlhf.metrics.agreement import (
    mean_kendall_tau_b,
    order_bias,
    rankings,
)
from finegrained_rlhf.metrics.functions import kendall_tau_b


def random_ranks(rng: np.random.Generator, items: int, answers: int = 4) -> list[list[int]]:
    return rng.integers(1, answers + 1, size=(items, answers)).tolist()


def test_values_and_pairs_are_those_of_the_feedback_records() -> None:
    assert (rankings.TIE, rankings.FIRST, rankings.SECOND) == (records.TIE, records.FIRST, records.SECOND)
    assert tuple(combinations(range(4), 2)) == records.PAIR_ORDER


def test_tau_is_scipys() -> None:
    rng = np.random.default_rng(8)
    undefined = 0
    for _trial in range(150):
        first, second = random_ranks(rng, 6), random_ranks(rng, 6)
        taus = [float(stats.kendalltau(x, y, variant="b").statistic) for x, y in zip(first, second, strict=True)]
        for x, y, tau in zip(first, second, taus, strict=True):
            assert kendall_tau_b(x, y) == (None if math.isnan(tau) else pytest.approx(tau))
        undefined += sum(map(math.isnan, taus))
        assert mean_kendall_tau_b(first, second) == pytest.approx(np.nanmean(taus))
    assert undefined > 5


def test_tau_by_hand() -> None:
    """Orders 1 2 3 and 1 3 2: two alike, one opposed, 1/3. Ranks 1 1 2 and 1 2 3: 2 / √(2 · 3). All tied: left out."""
    assert mean_kendall_tau_b([[1, 2, 3]], [[1, 3, 2]]) == pytest.approx(1 / 3)
    first, second = [[1, 2, 3], [1, 1, 2], [1, 1, 1]], [[1, 3, 2], [1, 2, 3], [1, 2, 3]]
    assert mean_kendall_tau_b(first, second) == pytest.approx((1 / 3 + 2 / math.sqrt(6)) / 2)
    assert mean_kendall_tau_b([[1, 1]], [[1, 2]]) is None and mean_kendall_tau_b([], []) is None


def test_order_bias_by_hand() -> None:
    """Shown 2 0 1: pairs 01 → 0 first, 02 → 2 first, 12 → 2 first. Preferences 1 1 0: one win, one loss, one tie."""
    found = order_bias([[1, 1, 0]], [[2, 0, 1]])
    assert (found.wins, found.decided, found.share, found.pair_p, found.item_p) == (1, 2, 0.5, 1.0, 1.0)
    # three wins of one item: 2/8 as pairs, but one throw of one coin
    found = order_bias([[1, 1, 1]], [[0, 1, 2]])
    assert (found.wins, found.decided, found.pair_p, found.item_p) == (3, 3, 0.25, 1.0)
    nothing = order_bias([[0]], [[1, 0]])
    assert (nothing.wins, nothing.decided, nothing.share, nothing.pair_p, nothing.item_p) == (0, 0, None, None, None)


def test_order_bias_equals_the_naive_count_and_all_signs() -> None:
    rng = np.random.default_rng(11)
    for _trial in range(60):
        items = int(rng.integers(1, 8))
        preferences = rng.integers(0, 3, size=(items, 6)).tolist()
        shown = [rng.permutation(4).tolist() for _ in range(items)]
        differences = []
        for row, order in zip(preferences, shown, strict=True):
            difference = 0
            for value, pair in zip(row, combinations(range(4), 2), strict=True):
                if value:
                    winner, loser = pair if value == 1 else pair[::-1]
                    difference += 1 if order.index(winner) < order.index(loser) else -1
            differences.append(difference)
        decided = sum(value > 0 for row in preferences for value in row)
        found = order_bias(preferences, shown)
        assert found.decided == decided and 2 * found.wins - decided == sum(differences)
        if decided:
            assert found.pair_p == pytest.approx(stats.binomtest(found.wins, decided).pvalue)
            sums = [abs(np.dot(signs, differences)) for signs in product((-1, 1), repeat=items)]
            assert found.item_p == pytest.approx(np.mean([total >= abs(sum(differences)) for total in sums]))


def test_one_pair_an_item_makes_both_tests_equal() -> None:
    rng = np.random.default_rng(12)
    preferences = rng.choice([0, 1, 1, 2], size=(300, 1)).tolist()
    found = order_bias(preferences, [[0, 1]] * 300)
    assert found.item_p == pytest.approx(found.pair_p, rel=1e-9) and found.item_p < 0.01


def test_the_test_of_items_keeps_its_level_where_that_of_pairs_does_not() -> None:
    """Six pairs of one order of four depend on each other: without any bias, p ≤ .05 comes about 1 in 10 times."""
    rng = np.random.default_rng(13)
    pair_rejects = item_rejects = 0
    for _trial in range(1000):
        ranks = [rng.permutation(4) for _ in range(30)]
        preferences = [[1 if a < b else 2 for a, b in combinations(row, 2)] for row in ranks]
        found = order_bias(preferences, [[0, 1, 2, 3]] * 30)
        pair_rejects += found.pair_p <= 0.05
        item_rejects += found.item_p <= 0.05
    assert item_rejects <= 70 < pair_rejects


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mean_kendall_tau_b([[1, 2]], [[1]]), "item 0"),
        (lambda: mean_kendall_tau_b([[1, 2]], [[1, float("inf")]]), "finite"),
        (lambda: order_bias([[1]], []), "same items"),
        (lambda: order_bias([[1]], [[1, 2]]), "item 0: shown"),
        (lambda: order_bias([[1]], [[0, 0]]), "item 0: shown"),
        (lambda: order_bias([[1]], [[0, 1, 2]]), "3 pairs"),
        (lambda: order_bias([[5]], [[0, 1]]), "0 .tie."),
    ],
)
def test_bad_input_is_refused(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
