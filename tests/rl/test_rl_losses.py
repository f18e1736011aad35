"""Clipped losses: each branch by hand, a scalar loop, gradients from their closed form, padding."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from finegrained_rlhf.rl.losses import clipped_policy_loss, clipped_value_loss

ONE = torch.ones(1, 1, dtype=torch.long)


def cell(x: float) -> Tensor:
    return torch.tensor([[x]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope", "clipped"),
    [
        # slope = d loss / d log π = −A·ρ where the plain branch is active, 0 where the clip is.
        (1.0, 2.0, -2.0, -2.0, 0),
        (1.5, 2.0, -2.4, 0.0, 1),  # better action already more likely than 1 + ε: no further push
        (0.5, 2.0, -1.0, -1.0, 0),  # better action made less likely: pull it back, unclipped
        (1.5, -2.0, 3.0, 3.0, 0),  # worse action made more likely: push down, unclipped
        (0.5, -2.0, 1.6, 0.0, 1),  # worse action already less likely than 1 − ε
        (1.1, 2.0, -2.2, -2.2, 0),
        (0.9, -2.0, 1.8, 1.8, 0),
    ],
)
def test_policy_clip_by_hand(ratio: float, advantage: float, loss: float, slope: float, clipped: int) -> None:
    logprobs = cell(math.log(ratio) - 3.0).requires_grad_()
    result = clipped_policy_loss(logprobs, cell(-3.0), cell(advantage), ONE, clip=0.2)
    assert float(result.loss.detach()) == pytest.approx(loss)
    assert float(result.ratio) == pytest.approx(ratio)
    assert int(result.clipped) == clipped
    result.loss.backward()
    assert float(logprobs.grad) == pytest.approx(slope)
    assert not result.ratio.requires_grad


def random_batch(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    draw = lambda: torch.randn(5, 6, generator=generator, dtype=torch.float64)  # noqa: E731
    mask = (torch.arange(6) < torch.tensor([6, 3, 1, 5, 4]).unsqueeze(1)).long()
    return draw(), draw(), draw(), mask


def test_policy_loss_against_a_scalar_loop() -> None:
    new, old, advantages, mask = random_batch()
    weights = torch.rand(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    total, weighted, count = 0.0, 0.0, 0
    for row in range(5):
        for t in range(6):
            if mask[row, t]:
                rho, a = math.exp(new[row, t] - old[row, t]), float(advantages[row, t])
                surrogate = min(rho * a, min(max(rho, 0.7), 1.3) * a)
                total -= surrogate
                weighted -= float(weights[row, t]) * surrogate
                count += surrogate < rho * a - 1e-12
    result = clipped_policy_loss(new, old, advantages, mask, clip=0.3)
    assert float(result.loss.detach()) == pytest.approx(total)
    assert int(result.clipped) == count > 0
    assert float(clipped_policy_loss(new, old, advantages, mask, clip=0.3, weights=weights).loss) == pytest.approx(
        weighted
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope", "clipped"),
    [
        (1.25, 2.0, -2.5, -2.5, 0),  # above 1 + ε, below 1 + ε'
        (1.5, 2.0, -2.6, 0.0, 1),  # clipped at 1 + ε'
        (0.5, 2.0, -1.0, -1.0, 0),
        (0.75, -2.0, 1.6, 0.0, 1),  # the lower bound is still ε
        (2.5, -2.0, 5.0, 5.0, 0),  # below c
        (3.5, -2.0, 6.0, 0.0, 1),  # bounded at c·|A|
        (3.5, 2.0, -2.6, 0.0, 1),  # c is for negative advantages
    ],
)
def test_a_higher_upper_clip_and_the_dual_clip_by_hand(
    ratio: float, advantage: float, loss: float, slope: float, clipped: int
) -> None:
    logprobs = cell(math.log(ratio) - 3.0).requires_grad_()
    result = clipped_policy_loss(logprobs, cell(-3.0), cell(advantage), ONE, clip=0.2, clip_upper=0.3, dual_clip=3.0)
    assert float(result.loss.detach()) == pytest.approx(loss)
    assert int(result.clipped) == clipped
    result.loss.backward()
    assert float(logprobs.grad) == pytest.approx(slope)


def test_policy_padding_has_no_loss_no_gradient_and_ratio_one() -> None:
    new, old, advantages, mask = random_batch(1)
    padding = ~mask.bool()
    clean = clipped_policy_loss(new, old, advantages, mask, clip=0.2)
    junk = torch.where(padding, 300.0, new).requires_grad_()  # exp(300) would be inf
    dirty = clipped_policy_loss(
        junk, torch.where(padding, -300.0, old), torch.where(padding, 1e9, advantages), mask, clip=0.2
    )
    assert float(dirty.loss.detach()) == float(clean.loss)
    assert int(dirty.clipped) == int(clean.clipped)
    assert (dirty.ratio[padding] == 1).all()
    dirty.loss.backward()
    assert torch.isfinite(junk.grad).all() and not junk.grad[padding].any()


@pytest.mark.parametrize(
    ("value", "old", "target", "loss", "slope", "clipped"),
    [
        # slope = d loss / d V = V − G on the plain branch, 0 where the clipped one is larger.
        (1.0, 1.0, 3.0, 2.0, -2.0, 0),
        (2.0, 1.0, 3.0, 0.5 * 1.8**2, 0.0, 1),  # moved too far toward the target: the max keeps the clipped error
        (1.0, 2.0, 3.0, 2.0, -2.0, 0),  # moved away: clipped error is smaller, the max keeps the plain one
        (3.0, 2.0, 1.0, 2.0, 2.0, 0),
        (1.5, 2.0, 1.0, 0.5 * 0.8**2, 0.0, 1),
    ],
)
def test_value_clip_by_hand(value: float, old: float, target: float, loss: float, slope: float, clipped: int) -> None:
    values = cell(value).requires_grad_()
    result = clipped_value_loss(values, cell(old), cell(target), ONE, clip=0.2)
    assert float(result.loss.detach()) == pytest.approx(loss)
    assert int(result.clipped) == clipped
    result.loss.backward()
    assert float(values.grad) == pytest.approx(slope)


def test_value_loss_against_a_scalar_loop_and_padding() -> None:
    values, old, returns, mask = random_batch(2)
    weights = torch.rand(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    total = weighted = 0.0
    for row in range(5):
        for t in range(6):
            if mask[row, t]:
                v, o, g = (float(x[row, t]) for x in (values, old, returns))
                bounded = min(max(v, o - 0.3), o + 0.3)
                total += 0.5 * max((v - g) ** 2, (bounded - g) ** 2)
                weighted += float(weights[row, t]) * 0.5 * max((v - g) ** 2, (bounded - g) ** 2)
    assert float(clipped_value_loss(values, old, returns, mask, clip=0.3).loss) == pytest.approx(total)
    assert float(clipped_value_loss(values, old, returns, mask, clip=0.3, weights=weights).loss) == pytest.approx(
        weighted
    )
    junk = torch.where(mask.bool(), values, 1e6).requires_grad_()
    result = clipped_value_loss(junk, old, returns, mask, clip=0.3)
    assert float(result.loss.detach()) == pytest.approx(total)
    result.loss.backward()
    assert not junk.grad[~mask.bool()].any()


def test_with_a_wide_clip_the_value_loss_is_half_the_squared_error() -> None:
    values, old, returns, mask = random_batch(3)
    real = mask.bool()
    expected = 0.5 * torch.nn.functional.mse_loss(values[real], returns[real], reduction="sum")
    assert float(clipped_value_loss(values, old, returns, mask, clip=1e9).loss) == pytest.approx(float(expected))


def test_losses_are_sums_so_cutting_the_batch_changes_nothing() -> None:
    new, old, advantages, mask = random_batch(4)
    whole = clipped_policy_loss(new, old, advantages, mask, clip=0.2).loss
    parts = [
        clipped_policy_loss(new[i : i + 2], old[i : i + 2], advantages[i : i + 2], mask[i : i + 2], clip=0.2).loss
        for i in (0, 2, 4)
    ]
    assert float(sum(parts)) == pytest.approx(float(whole))


def test_wrong_shapes_are_refused() -> None:
    new, old, advantages, mask = random_batch()
    with pytest.raises(ValueError, match="advantages has shape"):
        clipped_policy_loss(new, old, advantages[:, :1], mask, clip=0.2)
    with pytest.raises(ValueError, match="returns must be floating"):
        clipped_value_loss(new, old, mask, mask, clip=0.2)
