"""PPO's clipped losses, as sums over real tokens so that the caller can divide by a global count.

A mean over a micro-batch would make the gradient depend on how the batch was cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from finegrained_rlhf.rl.stats import check_token_tensors

if TYPE_CHECKING:
    from torch import Tensor


RatioLevel = Literal["token", "sequence"]
PolicyLossKind = Literal["clip", "cispo"]


@dataclass(frozen=True)
class PolicyLoss:
    """Result of `clipped_policy_loss`.

    Attributes:
        loss: scalar Σ w_t · loss_t, differentiable.
        ratio: fp [R, T] π(a_t)/π_old(a_t), detached, 1 at padding.
        used: fp [R, T], the ratio that was clipped: `ratio`, or that of the sequence at each of its tokens; detached,
            1 at padding.
        clipped: scalar, how many real tokens had the clipped branch active.
        low: scalar, those of them whose ratio was below the lower bound.
        high: scalar, those of them whose ratio was above the upper bound; what the dual clip bounds is in neither.
    """

    loss: Tensor
    ratio: Tensor
    used: Tensor
    clipped: Tensor
    low: Tensor
    high: Tensor


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
    level: RatioLevel = "token",
    kind: PolicyLossKind = "clip",
) -> PolicyLoss:
    """Σ_t w_t · max(−A_t ρ_t, −A_t clamp(ρ_t, 1 − ε, 1 + ε')) with ρ_t = exp(log π − log π_old).

    With `dual_clip` c the loss of a token with A_t < 0 is at most −c A_t. With `level=sequence` ρ_t has the value
    exp(mean of log π − log π_old over the response), and token t's gradient is that value times the gradient of
    log π(a_t): GSPO-token, which is GSPO where a response has one advantage and w_t = 1/|y|. With `kind=cispo` nothing is
    cut from the gradient: the sum is −Σ_t w_t · sg[clamp(ρ_t, 1 − ε, 1 + ε')] · A_t · log π(a_t).
    Source: Schulman et al. (2017), eq. 7; thesis algorithm 1. An upper ε' of its own ("clip-higher"): Yu et al. (2025,
    DAPO), section 3.1. Dual clip: Ye et al. (2020), eq. 5. GSPO and GSPO-token: Zheng et al. (2025), arXiv 2507.18071,
    eq. 5, 7, 13 and 14. CISPO: MiniMax (2025), arXiv 2506.13585, eq. 4 and 5.

    Args:
        logprobs: fp32 [R, T] of the policy being trained.
        old_logprobs: fp32 [R, T] of the behaviour policy.
        advantages: fp32 [R, T], no gradient.
        mask: int [R, T].
        clip: ε.
        clip_upper: ε'; None takes ε.
        dual_clip: c > 1; None sets no such bound.
        weights: fp32 [R, T] weight of each token in the sum; 1 when None.
        level: whose ratio is clipped, each token's or the whole response's.
        kind: what the clip does: ends a token's gradient, or bounds its weight.

    Returns:
        The loss with its diagnostics; for `cispo` a weight at its bound counts as clipped.
    """
    import torch

    check_token_tensors(mask, logprobs=logprobs, old_logprobs=old_logprobs, advantages=advantages)
    real = mask.bool()
    log_ratio = torch.where(real, logprobs - old_logprobs, 0.0)
    ratio = used = log_ratio.exp()
    if level == "sequence":
        mean = log_ratio.detach().sum(dim=1, keepdim=True) / real.sum(dim=1, keepdim=True).clamp(min=1)
        used = torch.where(real, log_ratio - log_ratio.detach() + mean, 0.0).exp()
    lower, upper = 1.0 - clip, 1.0 + (clip if clip_upper is None else clip_upper)
    below, above = used < lower, used > upper
    if kind == "cispo":
        larger = -used.detach().clamp(lower, upper) * advantages * logprobs
        bounded = below | above
    else:
        unclipped_loss = -advantages * used
        clipped_loss = -advantages * used.clamp(lower, upper)
        larger = torch.maximum(unclipped_loss, clipped_loss)
        bounded = clipped_loss > unclipped_loss
    low, high = (bounded & side & real for side in (below, above))
    if dual_clip is not None:
        most = -dual_clip * advantages
        beyond = (advantages < 0) & (larger > most)
        larger, bounded = torch.where(beyond, most, larger), bounded | beyond
    per_token = torch.where(real, larger, 0.0)
    if weights is not None:
        per_token = per_token * weights
    return PolicyLoss(
        loss=per_token.sum(),
        ratio=ratio.detach(),
        used=used.detach(),
        clipped=(bounded & real).sum(),
        low=low.sum(),
        high=high.sum(),
    )


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
