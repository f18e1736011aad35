"""When a reward model's judgements carry nothing: counted by hand."""

from __future__ import annotations

import pytest

from finegrained_rlhf.metrics.detection import uninformative


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
