"""The entropy bonus: its coefficient by hand, step by step."""

from __future__ import annotations

import pytest

from finegrained_rlhf.rl.entropy import EntropyBonus


def test_a_fixed_coefficient_stays_and_none_is_off() -> None:
    fixed = EntropyBonus(0.01)
    fixed.update(0.0)
    assert fixed.on and fixed.weight == 0.01
    fixed.load_state({"coefficient": 0.5, "below": True})  # of a run with another configuration
    assert fixed.weight == 0.01
    assert not EntropyBonus(0.0).on and EntropyBonus(0.0).weight == 0.0


def test_the_coefficient_by_hand() -> None:
    """Target 0.5, steps of 0.1 from 0.1: the bonus acts after a step at the target or below."""
    bonus = EntropyBonus(0.1, target=0.5, step=0.1)
    assert bonus.on and bonus.weight == 0.0  # nothing is known of the entropy yet
    followed = []
    for entropy in (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.3):
        bonus.update(entropy)
        followed.append((round(bonus.coefficient, 9), round(bonus.weight, 9)))
    assert followed == [(0.2, 0.2), (0.3, 0.3), (0.2, 0.0), (0.1, 0.0), (0.0, 0.0), (0.0, 0.0), (0.1, 0.1)]


def test_it_goes_on_from_its_state() -> None:
    one, other = (EntropyBonus(0.1, target=0.5) for _ in range(2))
    one.update(0.2)
    other.load_state(one.state())
    assert other == one and other.weight == pytest.approx(0.105)
    other.load_state({})  # a checkpoint of before there was a bonus
    assert other == one
