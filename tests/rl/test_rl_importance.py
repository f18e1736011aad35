"""Importance weights: by hand, against a loop, and what does not fit."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from torch import Tensor

from finegrained_rlhf.rl.importance import ImportanceMode, importance_weights

MASK = torch.tensor([[1, 1, 1], [1, 1, 0]])
# π/μ is 2, 1/2, 4 in the first row and 1, 3 in the second; what stands at padding must not matter.
RATIOS = torch.tensor([[2.0, 0.5, 4.0], [1.0, 3.0, 50.0]])
SAMPLER = torch.tensor([[-1.0, -2.0, -3.0], [-0.5, -4.0, -1.0]])
BY_HAND = {
    # token by token: C = 2.5 cuts the 4 and the 3
    "token_truncate": [[2.0, 0.5, 2.5], [1.0, 2.5, 1.0]],
    "token_mask": [[2.0, 0.5, 0.0], [1.0, 0.0, 1.0]],
    # of the tokens so far: 2, 2 · 1/2 = 1, 1 · 4 = 4 and 1, 3
    "prefix_truncate": [[2.0, 1.0, 2.5], [1.0, 2.5, 1.0]],
    "prefix_mask": [[2.0, 1.0, 0.0], [1.0, 0.0, 1.0]],
    # of responses: 2 · 1/2 · 4 = 4 and 1 · 3 = 3, both above C
    "sequence_truncate": [[2.5, 2.5, 2.5], [2.5, 2.5, 1.0]],
    "sequence_mask": [[0.0, 0.0, 0.0], [0.0, 0.0, 1.0]],
}


def loop(policy: Tensor, sampler: Tensor, mask: Tensor, cap: float, mode: str) -> list[list[float]]:
    found = []
    for row in range(mask.shape[0]):
        gaps = [float(policy[row, t] - sampler[row, t]) for t in range(mask.shape[1])]
        whole = sum(gap for t, gap in enumerate(gaps) if mask[row, t])
        weights = []
        for t, gap in enumerate(gaps):
            so_far = sum(gaps[: t + 1])
            log_ratio = {"token": gap, "prefix": so_far, "sequence": whole}[mode.split("_")[0]]
            ratio = math.exp(log_ratio) if mask[row, t] else 1.0
            if ratio > cap:
                ratio = 0.0 if mode.endswith("mask") else cap
            weights.append(ratio)
        found.append(weights)
    return found


@pytest.mark.parametrize("mode", get_args(ImportanceMode))
def test_numbers_by_hand(mode: ImportanceMode) -> None:
    found = importance_weights(SAMPLER + RATIOS.log(), SAMPLER, MASK, cap=2.5, mode=mode)
    torch.testing.assert_close(found.weights, torch.tensor(BY_HAND[mode]), atol=1e-6, rtol=1e-6)
    whole = mode.startswith("sequence")
    assert found.capped.tolist() == [[whole, whole, True], [whole, True, False]]
    assert float(found.ratios.max()) == pytest.approx(4.0, abs=1e-5)


@pytest.mark.parametrize("mode", get_args(ImportanceMode))
def test_against_a_loop(mode: ImportanceMode) -> None:
    generator = torch.Generator().manual_seed(0)
    policy, sampler = (-2 * torch.rand(7, 9, generator=generator) for _ in range(2))
    mask = (torch.arange(9) < torch.tensor([9, 1, 4, 0, 6, 8, 2])[:, None]).long()
    found = importance_weights(policy.requires_grad_(), sampler, mask, cap=1.7, mode=mode)
    expected = torch.tensor(loop(policy.detach(), sampler, mask, 1.7, mode))
    torch.testing.assert_close(found.weights, expected, atol=1e-5, rtol=1e-5)
    assert not found.weights.requires_grad and 0 < int(found.capped.sum()) < int(mask.sum())


def test_equal_policies_weigh_nothing() -> None:
    for mode in get_args(ImportanceMode):
        assert torch.equal(importance_weights(SAMPLER, SAMPLER, MASK, cap=1.0, mode=mode).weights, torch.ones(2, 3))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="sampler_logprobs has shape"):
        importance_weights(SAMPLER, SAMPLER[:, :2], MASK, cap=2.0)
    for cap in (0.5, math.nan):
        with pytest.raises(ValueError, match="cap of at least 1"):
            importance_weights(SAMPLER, SAMPLER, MASK, cap=cap)
    with pytest.raises(ValueError, match="token_truncate, token_mask"):
        importance_weights(SAMPLER, SAMPLER, MASK, cap=2.0, mode="token")  # type: ignore[arg-type]
