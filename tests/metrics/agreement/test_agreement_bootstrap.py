"""The bootstrap: by hand, against SciPy, coverage of a known share, and that items are drawn, not their units."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from finegrained_rlhf.metrics.agreement import BootstrapInterval, bootstrap_interval, cohen_kappa, krippendorff_alpha

Pair = tuple[list[int], list[int]]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def kappa(items: Sequence[Pair]) -> float | None:
    return cohen_kappa([a for first, _ in items for a in first], [b for _, second in items for b in second])


def test_by_hand() -> None:
    """Of (0 or 1) twice the mean is 0, .5 or 1 in a quarter, a half and a quarter of the draws."""
    assert bootstrap_interval([0, 1], mean) == BootstrapInterval(0.5, 0.0, 1.0, 0.0)
    assert bootstrap_interval([0, 1], mean, level=0.4) == BootstrapInterval(0.5, 0.5, 0.5, 0.0)
    assert bootstrap_interval([3, 3, 3], mean) == BootstrapInterval(3.0, 3.0, 3.0, 0.0)


def test_borders_are_the_quantiles_of_a_naive_loop() -> None:
    items = np.random.default_rng(14).normal(size=15).tolist()
    rng, values = np.random.default_rng(3), []
    for _draw in range(100):
        values.append(mean([items[int(i)] for i in rng.integers(15, size=15)]))
    values.sort()
    found = bootstrap_interval(items, mean, draws=100, seed=3)
    assert found.low == pytest.approx(values[2] + 0.475 * (values[3] - values[2]))  # .025 · 99 = 2.475
    assert found.high == pytest.approx(values[96] + 0.525 * (values[97] - values[96]))


def test_is_scipys() -> None:
    values = np.random.default_rng(15).exponential(size=60)
    result = stats.bootstrap((values,), np.mean, n_resamples=10_000, method="percentile", rng=1).confidence_interval
    found = bootstrap_interval(values.tolist(), mean, draws=10_000)
    assert (found.low, found.high) == pytest.approx((result.low, result.high), abs=0.02)


def test_a_seed_draws_the_same() -> None:
    items = list(range(30))
    assert bootstrap_interval(items, mean, seed=1) == bootstrap_interval(items, mean, seed=1)
    assert bootstrap_interval(items, mean, seed=1) != bootstrap_interval(items, mean, seed=2)


def test_every_draw_holds_as_many_whole_items() -> None:
    items = [([i], [i, i + 1]) for i in range(7)]
    sizes, repeats = [], 0

    def look(drawn: Sequence[tuple[list[int], list[int]]]) -> float:
        nonlocal repeats
        sizes.append(len(drawn))
        assert all(any(item is original for original in items) for item in drawn)
        repeats += len({id(item) for item in drawn}) < len(drawn)
        return 0.0

    bootstrap_interval(items, look, draws=50)
    assert sizes == [7] * 51 and repeats > 40


def test_units_of_an_item_are_not_independent() -> None:
    """40 items of ten equal units: as wide as for 40 units, √10 times as wide as for 400."""
    rng = np.random.default_rng(16)
    items = [[bit] * 10 for bit in rng.integers(0, 2, size=40).tolist()]
    grouped = bootstrap_interval(items, lambda drawn: mean([x for item in drawn for x in item]))
    units = bootstrap_interval([x for item in items for x in item], mean)
    assert grouped.value == units.value
    assert (grouped.high - grouped.low) / (units.high - units.low) == pytest.approx(10**0.5, rel=0.15)


def test_kappa_holds_the_truth_about_as_often_as_it_says() -> None:
    """Two people see one true label a segment, half of them errors, and each errs with .1.

    They agree with .9² + .1² = .82, chance is .5: κ = α = .64. Items have one to six segments; 95% within what 150
    trials allow.
    """
    rng, hits, of_alpha = np.random.default_rng(17), 0, 0
    for trial in range(150):
        items: list[Pair] = []
        for size in rng.integers(1, 7, size=80):
            truth = rng.integers(0, 2, size=size)
            first, second = (truth ^ (rng.random(size) < 0.1) for _ in range(2))
            items.append((first.tolist(), second.tolist()))
        found = bootstrap_interval(items, kappa, draws=100, seed=trial)
        hits += found.low <= 0.64 <= found.high
        if trial < 10:
            alpha = krippendorff_alpha([sum((item[person] for item in items), []) for person in (0, 1)])
            of_alpha += found.low <= alpha <= found.high
    assert 0.88 <= hits / 150 <= 0.99 and of_alpha == 10


def test_undefined_draws_are_counted_and_left_out() -> None:
    """One of two items holds one label only: a quarter of the draws are this item twice, where κ is undefined."""
    items: list[Pair] = [([0, 0], [0, 0]), ([1, 0], [1, 0])]
    found = bootstrap_interval(items, kappa)
    assert (found.value, found.low, found.high) == (1.0, 1.0, 1.0)
    assert found.undefined == pytest.approx(0.25, abs=0.05)


def test_what_shows_no_variation_has_no_interval() -> None:
    assert bootstrap_interval([4.0], mean) == BootstrapInterval(4.0, None, None, 0.0)
    assert bootstrap_interval([1, 2], lambda _: None) == BootstrapInterval(None, None, None, 1.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bootstrap_interval([], mean), "at least one item"),
        (lambda: bootstrap_interval([1], mean, draws=0), "at least one draw"),
        (lambda: bootstrap_interval([1], mean, level=1.0), "level"),
        (lambda: bootstrap_interval([1, 2], lambda _: float("nan")), "must be None"),
        (lambda: bootstrap_interval([1, 2], lambda _: float("inf")), "must be None"),
    ],
)
def test_bad_input_is_refused(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
