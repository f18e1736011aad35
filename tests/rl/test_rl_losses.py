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


# The ratio of a response, and CISPO --------------------------------------------------------------------------------


def test_the_ratio_of_a_response_by_hand() -> None:
    """Log ratios (0.3, −0.1): mean 0.1, clipped at 1.05. The better token's gradient ends, the worse one's is −A·ρ."""
    logprobs = torch.tensor([[-1.7, -2.1]], dtype=torch.float64).requires_grad_()
    old, advantages = torch.full((1, 2), -2.0, dtype=torch.float64), torch.tensor([[2.0, -3.0]], dtype=torch.float64)
    mask = torch.ones(1, 2, dtype=torch.long)
    result = clipped_policy_loss(logprobs, old, advantages, mask, clip=0.05, level="sequence")
    rho = math.exp(0.1)
    assert float(result.loss.detach()) == pytest.approx(-2.0 * 1.05 + 3.0 * rho)
    assert result.used.tolist() == [pytest.approx([rho, rho])]
    assert result.ratio.tolist() == [pytest.approx([math.exp(0.3), math.exp(-0.1)])]
    assert (int(result.clipped), int(result.low), int(result.high)) == (1, 0, 1)
    result.loss.backward()
    assert logprobs.grad is not None and logprobs.grad.tolist() == [pytest.approx([0.0, 3.0 * rho])]


def test_with_one_advantage_a_response_and_its_mean_it_is_gspo() -> None:
    """s = exp(Σ log ratio / |y|), loss Σ −min(s A, clip(s) A): eq. 5 of GSPO, differentiated as it stands."""
    new, old, advantages, mask = random_batch()
    ours, theirs = (new.clone().requires_grad_() for _ in range(2))
    one = advantages[:, :1] * mask
    weights = mask / mask.sum(dim=1, keepdim=True)
    result = clipped_policy_loss(ours, old, one, mask, clip=0.2, clip_upper=0.4, weights=weights, level="sequence")
    total = torch.zeros((), dtype=torch.float64)
    for row in range(5):
        n = int(mask[row].sum())
        s = torch.exp(sum(theirs[row, t] - old[row, t] for t in range(n)) / n)
        total = total - torch.min(s * one[row, 0], s.clamp(0.8, 1.4) * one[row, 0])
    assert float(result.loss.detach()) == pytest.approx(float(total.detach()))
    gradients = [torch.autograd.grad(loss, x)[0] for loss, x in ((result.loss, ours), (total, theirs))]
    torch.testing.assert_close(*gradients)
    assert 0 < int(result.low) and 0 < int(result.high) and int(result.clipped) < int(mask.sum())


@pytest.mark.parametrize(
    ("ratio", "advantage", "weight", "low", "high"),
    [(1.5, 2.0, 1.3, 0, 1), (1.5, -2.0, 1.3, 0, 1), (0.5, 2.0, 0.8, 1, 0), (1.1, -2.0, 1.1, 0, 0)],
)
def test_cispo_bounds_a_weight_and_keeps_the_gradient(
    ratio: float, advantage: float, weight: float, low: int, high: int
) -> None:
    logprobs = cell(math.log(ratio) - 3.0).requires_grad_()
    result = clipped_policy_loss(logprobs, cell(-3.0), cell(advantage), ONE, clip=0.2, clip_upper=0.3, kind="cispo")
    assert float(result.loss.detach()) == pytest.approx(-weight * advantage * (math.log(ratio) - 3.0))
    assert (int(result.clipped), int(result.low), int(result.high)) == (low + high, low, high)
    result.loss.backward()
    assert float(logprobs.grad) == pytest.approx(-weight * advantage)


def test_cispo_against_a_scalar_loop_and_without_clip_the_plain_gradient() -> None:
    new, old, advantages, mask = random_batch(3)
    logprobs, plain = (new.clone().requires_grad_() for _ in range(2))
    result = clipped_policy_loss(logprobs, old, advantages, mask, clip=1.0, clip_upper=0.5, kind="cispo")
    expected = torch.zeros(5, 6, dtype=torch.float64)
    for row in range(5):
        for t in range(int(mask[row].sum())):
            expected[row, t] = -min(math.exp(new[row, t] - old[row, t]), 1.5) * advantages[row, t]
    (gradient,) = torch.autograd.grad(result.loss, logprobs)
    torch.testing.assert_close(gradient, expected)
    assert int(result.low) == 0 < int(result.high)
    wide = {"clip": 1.0, "clip_upper": 1e9}
    losses = [clipped_policy_loss(plain, old, advantages, mask, **wide, kind=k).loss for k in ("clip", "cispo")]
    torch.testing.assert_close(*(torch.autograd.grad(loss, plain)[0] for loss in losses))


@pytest.mark.parametrize("options", [{"level": "sequence"}, {"kind": "cispo"}, {"level": "sequence", "kind": "cispo"}])
def test_padding_is_in_neither(options: dict[str, str]) -> None:
    new, old, advantages, mask = random_batch(1)
    spoilt = [torch.where(mask.bool(), x, torch.inf) for x in (new, old, advantages)]
    clean, dirty = (
        clipped_policy_loss(*given, mask, clip=0.2, **options)  # type: ignore[arg-type]
        for given in ((new, old, advantages), spoilt)
    )
    assert float(clean.loss) == float(dirty.loss) and torch.equal(clean.used, dirty.used)
    assert (dirty.used[~mask.bool()] == 1).all()
