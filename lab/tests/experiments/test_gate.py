"""When a learned judge counts."""

from __future__ import annotations

from typing import Any

import pytest

from finegrained_lab.experiments.gate import gate_page, judge_gate
from finegrained_rlhf.core.errors import DataError


def stress(right: float, low: float | None = None) -> dict[str, Any]:
    row = {"pairs": 40, "ranked_right": right, "low": right - 0.05 if low is None else low, "high": right + 0.05}
    change = {"family": "swap", "direction": "fall", **row, "components": {"factuality": row}}
    return {"changes": {"swapped name": change}, "search": {}}


ONES = [1.0] * 8
TOTALS = {"gold": [2.0, 3.0] * 4, "sft": [1.0, 2.0] * 4, "cut_lead": [0.0, 1.0] * 4}


def test_a_judge_that_ranks_and_is_not_fooled_counts() -> None:
    gate = judge_gate(TOTALS, stress(0.9), "a judge")
    assert gate["passed"] and gate["reasons"] == []
    assert gate["order"]["sft less cut_lead"] == {"value": 1.0, "low": 1.0, "high": 1.0, "share": 1.0}
    assert "The judge passes" in gate_page(gate) and "| gold " in gate_page(gate)
    assert judge_gate({**TOTALS, "gold": TOTALS["sft"]}, stress(0.9), "a judge")["passed"]  # no less is enough


@pytest.mark.parametrize(
    ("change", "report", "reason"),
    [
        ({"gold": [0.5, 1.5] * 4}, stress(0.9), "gold is not above sft: -0.500"),
        ({"cut_lead": [1.5, 2.5] * 4}, stress(0.9), "sft is not above cut_lead: -0.500"),
        ({"cut_lead": [0.0, 2.5] * 4}, stress(0.9), "sft is not above cut_lead: +0.250"),  # chance
        ({}, stress(0.7), "stress test: factuality: swapped name is ranked right in 70%"),
        ({}, None, "no stress test of the judge"),
        ({}, {"changes": {}}, "the stress test of the judge changed nothing"),
    ],
)
def test_what_fails_is_said_in_numbers(change: dict[str, Any], report: Any, reason: str) -> None:
    gate = judge_gate({**TOTALS, **change}, report, "a judge")
    assert not gate["passed"] and [one for one in gate["reasons"] if one.startswith(reason)] == gate["reasons"]
    assert reason in gate_page(gate) and "no row of this page is evidence" in gate_page(gate)


def test_a_row_that_is_missing_is_named() -> None:
    with pytest.raises(DataError, match="cut_lead is missing"):
        judge_gate({"gold": ONES, "sft": ONES}, None, "a judge")
