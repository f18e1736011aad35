"""Percent agreement, κ, α and prevalence: hand numbers, naive loops, scikit-learn and `krippendorff`."""

from __future__ import annotations

import warnings
from itertools import permutations
from typing import Any

import krippendorff
import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

from finegrained_rlhf.metrics.agreement import cohen_kappa, krippendorff_alpha, percent_agreement, prevalence

NA: str | None = None
UNHASHABLE: Any = ["a"]
LABELS = ["", "no error", "Unüberprüfbar", "事実", "🙂", "e\u0301", "é"]


def random_ratings(rng: np.random.Generator) -> list[list[str | None]]:
    """Two to five raters, up to 12 units, one to seven labels, up to half of them missing."""
    raters, units, labels = rng.integers(2, 6), rng.integers(0, 13), rng.integers(1, 8)
    missing = rng.choice([0.0, 0.2, 0.5])
    draw = rng.integers(labels, size=(raters, units))
    gone = rng.random((raters, units)) < missing
    return [[None if g else LABELS[i] for i, g in zip(*rows, strict=True)] for rows in zip(draw, gone, strict=True)]


def naive_kappa(first: list, second: list) -> float | None:
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    if not pairs or len({label for pair in pairs for label in pair}) == 1:
        return None
    observed = np.mean([a == b for a, b in pairs])
    expected = np.mean([a == b for a, _ in pairs for _, b in pairs])  # every first label with every second
    return (observed - expected) / (1 - expected)


def naive_alpha(ratings: list[list]) -> float | None:
    """Ordered pairs within units, weighted 1 / (m − 1), against ordered pairs of all pairable values."""
    units = [[row[u] for row in ratings if row[u] is not None] for u in range(len(ratings[0]))]
    units = [unit for unit in units if len(unit) >= 2]
    values = [value for unit in units for value in unit]
    if len(set(values)) < 2:
        return None
    observed = sum(sum(a != b for a, b in permutations(unit, 2)) / (len(unit) - 1) for unit in units) / len(values)
    expected = np.mean([a != b for a, b in permutations(values, 2)])
    return 1 - observed / expected


def near(value: float | None) -> object:
    return None if value is None else pytest.approx(value, abs=1e-12)


def test_kappa_by_hand() -> None:
    """20 yes/yes, 5 yes/no, 10 no/yes, 15 no/no: A_o = .7, A_e = .5 · .6 + .5 · .4 = .5, κ = .4."""
    first = ["yes"] * 25 + ["no"] * 25
    second = ["yes"] * 20 + ["no"] * 5 + ["yes"] * 10 + ["no"] * 15
    assert percent_agreement(first, second) == 0.7
    assert cohen_kappa(first, second) == pytest.approx(0.4)
    assert prevalence([first, second]) == {"yes": 0.55, "no": 0.45}


def test_high_agreement_may_be_a_modest_kappa() -> None:
    """90 clean/clean, 4 + 4 apart, 2 error/error: 92% agree, but A_e = .94² + .06² = .8872, κ = .0328 / .1128."""
    first = ["clean"] * 94 + ["error"] * 6
    second = ["clean"] * 90 + ["error"] * 4 + ["clean"] * 4 + ["error"] * 2
    assert percent_agreement(first, second) == pytest.approx(0.92)
    assert cohen_kappa(first, second) == pytest.approx(0.0328 / 0.1128)


@pytest.mark.parametrize("seed", range(5))
def test_alpha_of_numbers_is_the_librarys(seed: int) -> None:
    generator = np.random.default_rng(seed)
    table = generator.choice([1.0, 2.0, 11 / 3, 5.0, np.nan], size=(4, 12), p=[0.25, 0.25, 0.2, 0.2, 0.1])
    rows = [[None if np.isnan(value) else float(value) for value in row] for row in table]
    expected = krippendorff.alpha(reliability_data=table, level_of_measurement="interval")
    assert krippendorff_alpha(rows, "interval") == pytest.approx(expected)
    assert krippendorff_alpha([[1, 5, 2], [1, 5, 2]], "interval") == 1.0
    assert krippendorff_alpha([[3, 3], [3, 3]], "interval") is None


def test_alpha_is_krippendorffs_worked_examples() -> None:
    """Krippendorff (2011), sections A to C: .095 (binary), .692 (nominal), .743 (four observers, missing data)."""
    binary = [[0, 1, 0, 0, 0, 0, 0, 0, 1, 0], [1, 1, 1, 0, 0, 1, 0, 0, 0, 0]]
    assert krippendorff_alpha(binary) == pytest.approx(0.095, abs=5e-4)
    nominal = [list("aabbdcccedda"), list("babbbccceddd")]
    assert krippendorff_alpha(nominal) == pytest.approx(0.692, abs=5e-4)
    four = [
        [1, 2, 3, 3, 2, 1, 4, 1, 2, NA, NA, NA],
        [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, NA, 3],
        [NA, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, NA],
        [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, NA],
    ]
    assert krippendorff_alpha(four) == pytest.approx(0.743, abs=5e-4)


def test_alpha_by_hand() -> None:
    """Units aa, ab: n = 4, n_a = 3, D_o = 2/4, D_e = 1 − (3 · 2) / (4 · 3) = 1/2, α = 0; three of a unit weigh 1/2."""
    assert krippendorff_alpha([["a", "a", "a"], ["a", "b", NA]]) == 0.0
    # aab: coincidences apart 4 · 1/2 = 2 of n = 3; D_e = 1 − 2/6: 1 − (2/3) / (2/3)
    assert krippendorff_alpha([["a"], ["a"], ["b"]]) == pytest.approx(0.0)
    assert krippendorff_alpha([["a", "b"], ["a", "b"]]) == 1.0
    # always apart: D_o = 1, D_e = 1 − 4/12
    assert krippendorff_alpha([["a", "b"], ["b", "a"]]) == pytest.approx(1 - 1 / (1 - 4 / 12))


def test_equal_the_naive_loops_on_random_ratings() -> None:
    rng = np.random.default_rng(0)
    undefined = 0
    for _trial in range(600):
        ratings = random_ratings(rng)
        first, second = ratings[:2]
        both = [a == b for a, b in zip(first, second, strict=True) if a is not None and b is not None]
        assert percent_agreement(first, second) == near(np.mean(both) if both else None)
        assert cohen_kappa(first, second) == near(naive_kappa(first, second))
        assert cohen_kappa(second, first) == cohen_kappa(first, second)
        alpha = naive_alpha(ratings) if first else None
        assert krippendorff_alpha(ratings) == near(alpha)
        assert krippendorff_alpha(ratings[::-1]) == near(alpha)
        given = [label for row in ratings for label in row if label is not None]
        shares = prevalence(ratings)
        assert shares == {label: pytest.approx(given.count(label) / len(given)) for label in given}
        assert list(shares.values()) == sorted(shares.values(), reverse=True)
        undefined += alpha is None
    assert 20 < undefined < 400


def test_kappa_is_scikit_learns() -> None:
    rng = np.random.default_rng(1)
    compared = 0
    for _trial in range(400):
        pairs = [pair for pair in zip(*random_ratings(rng)[:2], strict=True) if None not in pair]
        if not pairs:
            continue
        first, second = map(list, zip(*pairs, strict=True))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = float(cohen_kappa_score(first, second))
        ours = cohen_kappa(first, second)
        assert ours == near(None if np.isnan(theirs) else theirs)
        compared += ours is not None
    assert compared > 200


def test_alpha_is_the_librarys() -> None:
    rng = np.random.default_rng(2)
    compared = 0
    for _trial in range(400):
        ratings = random_ratings(rng)
        codes = np.array([[np.nan if x is None else LABELS.index(x) for x in row] for row in ratings], dtype=float)
        ours = krippendorff_alpha(ratings)
        if ours is None:  # the library refuses one label and too few values, or divides 0 by 0
            continue
        assert ours == near(krippendorff.alpha(reliability_data=codes, level_of_measurement="nominal"))
        compared += 1
    assert compared > 200


@pytest.mark.parametrize(
    ("first", "second"), [([], []), ([NA, "a"], ["a", NA]), (["a", "a"], ["a", "a"]), (["é", NA], ["é", "b"])]
)
def test_kappa_of_nothing_or_of_one_label_is_undefined(first: list, second: list) -> None:
    assert cohen_kappa(first, second) is None
    assert krippendorff_alpha([first, second]) is None


def test_raters_who_never_use_a_label_of_the_other_have_kappa_0() -> None:
    assert cohen_kappa(["a", "a"], ["b", "b"]) == 0.0 == cohen_kappa_score(["a", "a"], ["b", "b"])


def test_too_few_labels_are_undefined() -> None:
    assert percent_agreement([], []) is None and percent_agreement([NA, "a"], ["a", NA]) is None
    assert krippendorff_alpha([]) is None and krippendorff_alpha([["a", "b"]]) is None
    assert krippendorff_alpha([["a", NA], [NA, "b"]]) is None
    assert prevalence([]) == {} and prevalence([[NA], [NA]]) == {}


def test_falsy_labels_are_labels() -> None:
    assert percent_agreement([0, False, ""], [0, False, ""]) == 1.0
    assert prevalence([[0, 0, "", NA]]) == {0: pytest.approx(2 / 3), "": pytest.approx(1 / 3)}


def test_labels_that_look_alike_are_different() -> None:
    """A letter with a combining accent and the composed letter: whoever reads labels may normalise them."""
    assert percent_agreement(["é"], ["e\u0301"]) == 0.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: percent_agreement(["a"], ["a", "b"]), "same units"),
        (lambda: cohen_kappa(["a"], []), "same units"),
        (lambda: krippendorff_alpha([["a"], ["a"], ["a", "b"]]), "same units"),
        (lambda: krippendorff_alpha([[float("nan")], ["a"]]), "missing label is None"),
        (lambda: prevalence([[UNHASHABLE]]), "hashable"),
    ],
)
def test_bad_labels_are_refused(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
