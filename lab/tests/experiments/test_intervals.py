"""Bootstrap intervals: by hand, against SciPy, and by how often they hold the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from finegrained_lab.experiments import intervals
from finegrained_lab.experiments.intervals import crossed_interval, difference_interval, share_interval


def test_equal_questions_have_no_width() -> None:
    assert share_interval([1, 2, 3], [2, 4, 6]) == (0.5, 0.5)
    assert difference_interval(([1, 1], [1, 1]), ([0, 0], [1, 1])) == (1.0, 1.0)


def test_two_questions_by_hand() -> None:
    """Of (0 or 1) twice the mean is 0, .5 or 1 in a quarter, a half and a quarter of the samples."""
    assert share_interval([0, 1], [1, 1]) == (0.0, 1.0)


def test_a_mean_is_scipys() -> None:
    values = np.random.default_rng(3).normal(size=60)
    result = stats.bootstrap((values,), np.mean, n_resamples=20_000, method="percentile", rng=1)
    ours = share_interval(values.tolist(), [1.0] * 60)
    assert ours == pytest.approx(result.confidence_interval, abs=0.02)


def test_a_paired_difference_is_scipys() -> None:
    rng = np.random.default_rng(4)
    theirs = rng.normal(size=50)
    ours = theirs + rng.normal(0.2, 0.3, size=50)
    result = stats.bootstrap((ours - theirs,), np.mean, n_resamples=20_000, method="percentile", rng=1)
    found = difference_interval((ours.tolist(), [1] * 50), (theirs.tolist(), [1] * 50))
    assert found == pytest.approx(result.confidence_interval, abs=0.01)


def test_a_share_holds_the_truth_about_as_often_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions with one to six segments, errors that come together in a question: 95% within what 200 trials allow."""
    monkeypatch.setattr(intervals, "DRAWS", 1000)  # borders move by .03 of the width, too little to be seen in 200
    rng, hits = np.random.default_rng(5), 0
    for trial in range(200):
        of = rng.integers(1, 7, size=80)
        rates = rng.beta(1.2, 2.8, size=80)  # mean .3
        low, high = share_interval(rng.binomial(of, rates).tolist(), of.tolist(), seed=trial)
        hits += low <= 0.3 <= high
    assert 0.88 <= hits / 200 <= 0.99


def test_segments_of_a_question_are_not_independent() -> None:
    found, of = [0, 10] * 20, [10] * 40
    low, high = share_interval(found, of)
    alone = share_interval([0, 1] * 200, [1] * 400)
    assert high - low > 2.5 * (alone[1] - alone[0])


def test_samples_without_a_segment_do_not_count() -> None:
    assert share_interval([1, 0], [1, 0]) == (1.0, 1.0)
    assert all(math.isnan(border) for border in share_interval([0, 0], [0, 0]))


@pytest.mark.parametrize("numbers", [([], []), ([1.0], [1.0, 1.0])], ids=["no question", "two lengths"])
def test_what_is_wrong_is_said(numbers: tuple[list[float], list[float]]) -> None:
    with pytest.raises(ValueError, match="at least one question|two numbers a question"):
        share_interval(*numbers)
    with pytest.raises(ValueError, match="the same questions"):
        difference_interval(([1.0], [1.0]), ([1.0, 0.0], [1.0, 1.0]))


def test_of_one_seed_a_crossed_interval_is_that_over_questions() -> None:
    rng = np.random.default_rng(6)
    ours, theirs = rng.normal(size=(2, 30))
    over_questions = difference_interval((ours.tolist(), [1] * 30), (theirs.tolist(), [1] * 30))
    assert crossed_interval(ours[None], theirs[None]) == pytest.approx(over_questions)


def test_a_crossed_interval_has_the_spread_of_both() -> None:
    """Questions that agree leave that of the seeds, and the other way round; with both it is that of their sum."""
    rng = np.random.default_rng(7)
    seeds, questions = rng.normal(size=(5, 1)), rng.normal(size=(1, 40))
    zero = np.zeros((5, 40))
    of_seeds, of_questions, of_both = (
        high - low for low, high in (crossed_interval(zero + by, zero) for by in (seeds, questions, seeds + questions))
    )
    assert of_both == pytest.approx(math.hypot(of_seeds, of_questions), rel=0.05)
    assert crossed_interval(np.array([[0.0, 0.0], [1.0, 1.0]]), np.zeros((2, 2))) == (0.0, 1.0)  # two seeds, by hand


def test_what_a_seed_does_not_know_of_a_question_is_left_out() -> None:
    ours = np.array([[1.0, np.nan], [1.0, 1.0]])
    assert crossed_interval(ours, np.zeros((2, 2))) == (1.0, 1.0)
    with pytest.raises(ValueError, match="the same seeds and questions"):
        crossed_interval(ours, np.zeros((2, 3)))
