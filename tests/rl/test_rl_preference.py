"""Losses on pairs: by hand, by their definition, and where their gradients point."""

from __future__ import annotations

import math

import pytest
import torch

from finegrained_rlhf.rl.preference import preference_losses

PAIRS = torch.tensor([[-3.0, -5.0, -4.0, -4.0], [-7.0, -6.0, -5.5, -6.0], [-2.0, -2.0, -2.0, -2.0]]).T


def naive(c: float, r: float, rc: float, rr: float, beta: float, lam: float) -> float:
    margin = beta * ((c - rc) - (r - rr) - lam * max(0.0, rc - c))
    return -math.log(1 / (1 + math.exp(-margin)))


@pytest.mark.parametrize(("beta", "positive"), [(0.1, 0.0), (0.5, 0.0), (0.1, 5.0)])
def test_each_pair_by_its_definition(beta: float, positive: float) -> None:
    found = preference_losses(*PAIRS, beta=beta, positive=positive)
    expected = [naive(c, r, rc, rr, beta, positive) for c, r, rc, rr in PAIRS.T.tolist()]
    assert torch.allclose(found, torch.tensor(expected), atol=1e-6)


def test_by_hand() -> None:
    """Equal to the reference: log 2. A margin of 2 at β = .5: log(1 + e⁻¹)."""
    found = preference_losses(*PAIRS, beta=0.5)
    assert found[2].item() == pytest.approx(math.log(2)) and found[0].item() == pytest.approx(math.log1p(math.exp(-1)))


def test_dpo_alone_may_push_both_down_and_dpo_positive_does_not() -> None:
    """On shared tokens the gradients of DPO cancel; λ pulls the preferred answer back to where it was."""
    shared = torch.zeros((), requires_grad=True)  # what both answers have in common
    below = torch.tensor([-1.0])
    for positive, sign in ((0.0, 0), (5.0, -1)):
        both, zero = below + shared, torch.zeros(1)
        loss = preference_losses(both, both, zero, zero, beta=0.1, positive=positive)
        (gradient,) = torch.autograd.grad(loss.sum(), shared)
        assert int(gradient.sign()) == sign


@pytest.mark.parametrize("wrong", [{"beta": 0.0}, {"beta": 0.1, "positive": -1.0}])
def test_what_cannot_be(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="beta"):
        preference_losses(*PAIRS, **wrong)
    with pytest.raises(ValueError, match="four vectors"):
        preference_losses(PAIRS[0], PAIRS[0, :2], PAIRS[0], PAIRS[0], beta=0.1)
