"""The four counts of claims and their rates, and when a reward model's judgements carry nothing: counted by hand."""

from __future__ import annotations

import pytest

from finegrained_rlhf.metrics.detection import Confusion, harmonic_mean, uninformative


def confusion(found: int, missed: int, false_alarms: int, clean: int) -> dict[str, object]:
    return {"confusion": {"found": found, "missed": missed, "false_alarms": false_alarms, "clean": clean}}


@pytest.mark.parametrize(
    ("trust", "problem"),
    [
        (confusion(0, 20, 0, 80), "finds no error in every one of 100 segments: it is right in 80%"),
        (confusion(60, 0, 40, 0), "finds an error in every one of 100 segments: it is right in 60%"),
        (
            confusion(10, 10, 15, 65),
            "is right in 75.0% of 100 segments, and who always names the more frequent class in 80.0%",
        ),
        (confusion(0, 0, 3, 97), "all 100 labels that it was measured on are of one class (no error)"),
        (confusion(4, 2, 0, 0), "all 6 labels that it was measured on are of one class (an error)"),
        (confusion(15, 5, 4, 76), None),  # right in 91 of 100
        ({"accuracy": 0.5, "items": 40}, "orders 50% of the pairs as people do, which chance does too"),
        ({"accuracy": 0.75, "items": 40}, None),
        ({"accuracy": 0.0, "items": 0}, None),
        ({"confusion": {"found": 1}}, None),  # of another version
        ({}, None),
    ],
)
def test_uninformative_judgements(trust: dict[str, object], problem: str | None) -> None:
    assert uninformative(trust) == problem


def test_counts_and_rates_by_hand() -> None:
    truth = [True, True, True, False, False, False, False, False]
    claims = [True, True, False, True, False, False, False, False]
    counts = Confusion.of(truth, claims)
    assert counts == Confusion(found=2, missed=1, false_alarms=1, clean=4)
    assert (counts.items, counts.errors, counts.claims) == (8, 3, 3)
    assert (counts.accuracy, counts.precision, counts.recall, counts.f1) == (6 / 8, 2 / 3, 2 / 3, 2 / 3)
    assert counts.false_alarm_rate == 1 / 5
    one_sided = Confusion.of([False, False, True], [True, True, False])
    assert one_sided == Confusion(found=0, missed=1, false_alarms=2, clean=0)
    assert (one_sided.recall, one_sided.false_alarm_rate, one_sided.f1) == (0.0, 1.0, 0.0)
    nothing = Confusion.of([], [])
    assert (nothing.accuracy, nothing.precision, nothing.recall, nothing.f1, nothing.false_alarm_rate) == (None,) * 5
    with pytest.raises(ValueError):
        Confusion.of([True], [])
    assert harmonic_mean(0.5, 1.0) == pytest.approx(2 / 3) and harmonic_mean(0.0, 0.0) == 0.0
