"""Generalised advantage estimation over token rewards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from finegrained_rlhf.rl.stats import check_token_tensors

if TYPE_CHECKING:
    from torch import Tensor


def generalised_advantages(
    r_t: Tensor, v_t: Tensor, mask: Tensor, *, discount: float, lambda_: float
) -> tuple[Tensor, Tensor]:
    """GAE(γ, λ) for episodes that end at their last real token.

    δ_t = r_t + γ v_{t+1} − v_t,   A_t = δ_t + γ λ A_{t+1},   G_t = A_t + v_t,
    where v_{t+1} and A_{t+1} are 0 after the last real token, so padding never enters.

    Source: Schulman et al. (2016); thesis appendix A.1.1. The value target A + V is the original code's
    (`fgrlhf/ppo.py`); `truncated_returns` gives the thesis's.

    Args:
        r_t: fp [R, T] reward after the action at t.
        v_t: fp [R, T] value of the state before the action at t.
        mask: int [R, T]; real tokens are a prefix of each row.
        discount: γ.
        lambda_: λ.

    Returns:
        (advantages, returns), both [R, T], 0 at padding.

    Raises:
        ValueError: shapes, dtypes, or a mask with real tokens after padding.
    """
    import torch

    check_token_tensors(mask, r_t=r_t, v_t=v_t)
    if mask.shape[1] > 1 and bool((mask[:, 1:] > mask[:, :-1]).any()):
        raise ValueError("mask must be a prefix of ones in every row")
    real = mask.to(v_t.dtype)
    values, rewards = v_t * real, r_t * real
    advantage_tp1 = torch.zeros_like(values[:, 0])
    v_tp1 = torch.zeros_like(advantage_tp1)
    columns = []
    for t in reversed(range(mask.shape[1])):
        delta = rewards[:, t] + discount * v_tp1 - values[:, t]
        advantage_tp1 = (delta + discount * lambda_ * advantage_tp1) * real[:, t]
        v_tp1 = values[:, t]
        columns.append(advantage_tp1)
    advantages = torch.stack(columns[::-1], dim=1)
    return advantages, (advantages + values) * real


def truncated_returns(r_t: Tensor, mask: Tensor, *, discount: float) -> Tensor:
    """The thesis's value target G_t = Σ_{t'=t}^{T−1} γ^{t'−t} r_{t'} + γ^{T−t} V_old(s_T), with T = |y|.

    The formula is that of Schulman et al. (2017), eq. 10: the T tokens are the actions 0 … T−1 and s_T is the state
    after the last of them. The episode is over there, so V_old(s_T) is 0, as in `generalised_advantages`, and what is
    left is the discounted sum of the rewards, the last token's included. (Read with the thesis's own numbering of
    tokens from 1, the sum would end before the last token, on which the rewards of whole responses lie.)
    Source: thesis section 6.2 ("Learning algorithm").

    Args:
        r_t: fp [R, T] reward after the action at t.
        mask: int [R, T], a prefix of ones in each row.
        discount: γ.

    Returns:
        [R, T], 0 at padding.

    Raises:
        ValueError: shapes or dtypes.
    """
    import torch

    check_token_tensors(mask, r_t=r_t)
    rewards = r_t * mask.to(r_t.dtype)
    return_tp1 = torch.zeros_like(rewards[:, 0])
    columns = []
    for t in reversed(range(mask.shape[1])):
        return_tp1 = (rewards[:, t] + discount * return_tp1) * mask[:, t]
        columns.append(return_tp1)
    return torch.stack(columns[::-1], dim=1)
