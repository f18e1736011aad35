"""Checks of values that come from files and configurations."""

from __future__ import annotations

import math

import pytest

from finegrained_rlhf.core.checks import is_number


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *[(value, True) for value in (0, -3, 2.5, 10**300)],
        *[(value, False) for value in (True, None, "1", [1], math.nan, -math.inf, 10**400)],
    ],
)
def test_a_number_is_finite_and_no_truth_value(value: object, expected: bool) -> None:
    assert is_number(value) is expected
