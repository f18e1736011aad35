"""The world of regret: formulas by hand, regret that is measured against them, bounds."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from finegrained_lab.worlds.regret import MeasureRegret, measure
from finegrained_lab.worlds.regret.formulas import (
    corrected_errors,
    enough_questions,
    geometric_residual,
    kept_errors,
    shrinks,
    stale_error,
    switch_lower_bound,
    uniform_residual,
)
from finegrained_lab.worlds.regret.measure import RegretCase, measured_case, regret_cases
from finegrained_lab.worlds.regret.policies import MemoryPolicy, play_rounds
from finegrained_lab.worlds.regret.rounds import Geometric, PowerLaw, RegretWorld
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import read_json

SEED, RUNS = 77, 400


def test_formulas_by_hand() -> None:
    assert geometric_residual(0.5, 2, 2) == 0.0625 and uniform_residual(16, 2, 3) == 0.5
    assert uniform_residual(16, 2, 5) == 0.0
    assert [stale_error(3, j) for j in (0, 1, 2)] == pytest.approx([0.0, 1.0, 0.5])
    assert kept_errors([4, 4, 4], 3, 0.5) == pytest.approx(0 + 2 + 1)
    assert corrected_errors([10, 10], 1, 1.0, 4) == pytest.approx(2.0)
    assert corrected_errors([10, 10], 1, 1.0, 4, 2) == pytest.approx(4.0)
    assert corrected_errors([1], 2, 1.0, 4) == pytest.approx(1.0)  # one of two situations is met
    assert switch_lower_bound(5) == 6 / 5 and enough_questions(400, 2) == 9 and enough_questions(1, 2) == 0
    with pytest.raises(ValueError):
        corrected_errors([1], 1, 1.0, 4, 3)


def test_the_least_errors_without_feedback_by_enumeration() -> None:
    """Of all sequences of two actions in 9 rounds, the best one makes the proof's number on average over switches."""
    rounds = 9
    right = [[int(t >= tau) for t in range(1, rounds + 1)] for tau in range(1, rounds + 1)]
    least = min(
        sum(a != b for wanted in right for a, b in zip(actions, wanted, strict=True)) / rounds
        for actions in itertools.product((0, 1), repeat=rounds)
    )
    assert least == pytest.approx(switch_lower_bound(rounds))


def test_balanced_questions_do_not_shrink_by_a_factor_of_m() -> None:
    """Assumption A1: true of the geometric prior, false of more than m + 1 equally likely actions."""
    geometric = [geometric_residual(0.5, 2, k) for k in range(4)]
    assert all(shrinks(*pair, 2) for pair in itertools.pairwise(geometric))
    assert shrinks(uniform_residual(3, 2, 0), uniform_residual(3, 2, 1), 2)
    assert not shrinks(uniform_residual(4, 2, 0), uniform_residual(4, 2, 1), 2)
    assert uniform_residual(16, 2, 2) > 2.0**-2


@pytest.mark.parametrize(("arity", "mass"), [(2, 2 / 3), (3, 0.5)])
def test_a_power_law_reaches_the_rate(arity: int, mass: float) -> None:
    """By its probabilities one by one: they fall, and the best guess after k questions errs with q m⁻ᵏ."""
    most, prior = arity**7, PowerLaw(arity, mass)
    probabilities = [1 - mass] + [0.0] * (most - 1)
    for h in range(1, most):
        j = next(j for j in range(7) if arity**j <= h < arity ** (j + 1))
        probabilities[h] = mass * float(arity) ** (-2 * j - 1)
    assert all(after <= before + 1e-12 for before, after in itertools.pairwise(probabilities))
    beyond = mass * float(arity) ** -7
    assert sum(probabilities) == pytest.approx(1 - beyond)
    for k in range(5):
        guesses = [max(probabilities[digits :: arity**k]) for digits in range(arity**k)]
        assert 1 - sum(guesses) == pytest.approx(prior.residual(arity, k)) == pytest.approx(mass * float(arity) ** -k)
        assert shrinks(prior.residual(arity, k), prior.residual(arity, k + 1), arity)
    drawn = prior.draw(np.random.default_rng(1), (40_000,))
    for h in (0, 1, arity, arity**2):
        expected = probabilities[h]
        assert abs((drawn == h).mean() - expected) < 4 * (expected / 40_000) ** 0.5
    for wrong in ((1, 0.5), (arity, 0.9), (arity, 0.0)):
        with pytest.raises(ConfigError):
            PowerLaw(*wrong)
    with pytest.raises(ValueError):
        prior.residual(arity + 1, 1)


def test_a_bound_that_is_the_formula_is_compared_with_it() -> None:
    """A sample lies on either side of such a bound; a wrong formula does not pass by its spread."""
    cases = {case.name: case for case in regret_cases()}
    same = {name for name, case in cases.items() if case.is_bound}
    assert {"one switch, T, 400, knows the prior", "one situation, K, 4, is corrected"} <= same
    assert "power law, m = 2, k, 3, asks" not in same  # q below 1
    case = cases["one switch, T, 400, knows the prior"]
    assert measured_case(case, SEED, 5)["kept"] is True
    below = replace(case, expected=case.expected - 1e-3)
    assert not below.is_bound and below.keeps(below.expected) is False


@pytest.fixture(scope="module")
def measured() -> list[tuple[RegretCase, dict]]:
    cases = [case for case in regret_cases() if case.world.rounds <= 400]
    return [(case, measured_case(case, SEED, RUNS)) for case in cases]


def test_measured_regret_is_the_formulas_within_its_standard_error(measured: list[tuple[RegretCase, dict]]) -> None:
    """And the bounds are kept where they should be, and are not where an assumption is missing."""
    assert len({case.name for case, _ in measured}) == len(measured)
    scores = [row["z"] for _, row in measured if row["z"] is not None]
    assert len(scores) > 40 and max(map(abs, scores)) < 4 and sum(abs(z) > 2 for z in scores) < 0.1 * len(scores)
    for case, row in measured:
        assert row["z"] is not None or row["agrees"], case.name
        assert row["kept"] == case.keeps(case.expected), case.name
        assert not case.follows or row["kept"] is not False, case.name
    broken = {case.group for case, row in measured if row["kept"] is False}
    assert {"one switch, T", "one situation, K", "8 situations, K", "uniform prior, m = 2, k"} <= broken


def test_a_wrong_formula_is_noticed() -> None:
    """The paper's m⁻ᵏ as if it were an equality, and one error a switch in several situations."""
    cases = {case.name: case for case in regret_cases()}
    for name in ("geometric prior, m = 2, k, 2, asks", "8 situations, K, 16, is corrected"):
        case = cases[name]
        row = measured_case(replace(case, expected=case.bound or 0.0), SEED, RUNS)
        assert abs(row["z"]) > 20 and not row["agrees"]


def test_a_policy_sees_what_it_asks_alone() -> None:
    world = RegretWorld(30, 2, 0.5, 2, 4, 3, Geometric(0.5))
    drawn = world.draw([1], 50)
    assert world.lengths == [10, 10, 10]
    errors, asked = play_rounds(MemoryPolicy(2), drawn)
    assert (asked == 2 * drawn.ambiguous.sum(1)).all()
    silent, none = play_rounds(MemoryPolicy(), drawn)
    assert not none.any() and (silent >= errors).all() and silent.sum() > errors.sum()


def test_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "regret_cases", lambda: regret_cases()[:4])
    found = MeasureRegret(str(tmp_path), seed=3, runs=5, progress=False).run()
    assert read_json(tmp_path / "summary.json") == found and len(found["cases"]) == 4
    for wrong in ({"runs": 1}, {"seed": -1}):
        with pytest.raises(ConfigError):
            MeasureRegret(str(tmp_path), **wrong)
