"""PPO's clipped losses, as sums over real tokens so that the caller can divide by a global count.

A mean over a micro-batch would make the gradient depend on how the batch was cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from finegrained_rlhf.rl.stats import check_token_tensors

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class PolicyLoss:
    """Result of `clipped_policy_loss`.

    Attributes:
        loss: scalar Σ w_t · loss_t, differentiable.
        ratio: fp [R, T] π(a_t)/π_old(a_t), detached, 1 at padding.
        clipped: scalar, how many real tokens had the clipped branch active.
    """

    loss: Tensor
    ratio: Tensor
    clipped: Tensor


def clipped_policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip: float,
    clip_upper: float | None = None,
    dual_clip: float | None = None,
    weights: Tensor | None = None,
) -> PolicyLoss:
    """Σ_t w_t · max(−A_t ρ_t, −A_t clamp(ρ_t, 1 − ε, 1 + ε')) with ρ_t = exp(log π − log π_old).

    With `dual_clip` c the loss of a token with A_t < 0 is at most −c A_t.
    Source: Schulman et al. (2017), eq. 7; thesis algorithm 1. An upper ε' of its own ("clip-higher"): Yu et al. (2025,
    DAPO), section 3.1. Dual clip: Ye et al. (2020), eq. 5.

    Args:
        logprobs: fp32 [R, T] of the policy being trained.
        old_logprobs: fp32 [R, T] of the behaviour policy.
        advantages: fp32 [R, T], no gradient.
        mask: int [R, T].
        clip: ε.
        clip_upper: ε'; None takes ε.
        dual_clip: c > 1; None sets no such bound.
        weights: fp32 [R, T] weight of each token in the sum; 1 when None.

    Returns:
        The loss with its diagnostics.
    """
    import torch

    check_token_tensors(mask, logprobs=logprobs, old_logprobs=old_logprobs, advantages=advantages)
    real = mask.bool()
    log_ratio = torch.where(real, logprobs - old_logprobs, 0.0)
    ratio = log_ratio.exp()
    unclipped_loss = -advantages * ratio
    clipped_loss = -advantages * ratio.clamp(1.0 - clip, 1.0 + (clip if clip_upper is None else clip_upper))
    larger = torch.maximum(unclipped_loss, clipped_loss)
    bounded = clipped_loss > unclipped_loss
    if dual_clip is not None:
        most = -dual_clip * advantages
        above = (advantages < 0) & (larger > most)
        larger, bounded = torch.where(above, most, larger), bounded | above
    per_token = torch.where(real, larger, 0.0)
    if weights is not None:
        per_token = per_token * weights
    active = (bounded & real).sum()
    return PolicyLoss(loss=per_token.sum(), ratio=ratio.detach(), clipped=active)


@dataclass(frozen=True)
class ValueLoss:
    """Result of `clipped_value_loss`.

    Attributes:
        loss: scalar Σ_t w_t · loss_t, differentiable.
        clipped: scalar, how many real tokens had the clipped branch active.
    """

    loss: Tensor
    clipped: Tensor


def clipped_value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, *, clip: float, weights: Tensor | None = None
) -> ValueLoss:
    """Σ_t w_t · 0.5 · max((V_t − G_t)², (clamp(V_t, V_old ± ε) − G_t)²).

    Source: original code, `fgrlhf/ppo.py`; the max keeps the clip pessimistic.

    Args:
        values: fp32 [R, T] of the value model being trained.
        old_values: fp32 [R, T] from before the update.
        returns: fp32 [R, T] targets, no gradient.
        mask: int [R, T].
        clip: ε in units of the value.
        weights: fp32 [R, T] weight of each token in the sum; 1 when None.
    """
    import torch

    check_token_tensors(mask, values=values, old_values=old_values, returns=returns)
    real = mask.bool()
    bounded = torch.clamp(values, old_values - clip, old_values + clip)
    unclipped_loss = (values - returns) ** 2
    clipped_loss = (bounded - returns) ** 2
    per_token = torch.where(real, torch.maximum(unclipped_loss, clipped_loss), 0.0)
    if weights is not None:
        per_token = per_token * weights
    return ValueLoss(loss=0.5 * per_token.sum(), clipped=((clipped_loss > unclipped_loss) & real).sum())
