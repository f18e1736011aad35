"""From a rollout and its rewards to what PPO learns from. All statistics are global over the processes."""

from __future__ import annotations

import torch
from torch import Tensor

from finegrained_rlhf.core.errors import ConsistencyError
from finegrained_rlhf.core.records import Experience, RewardTrace, Rollout
from finegrained_rlhf.rl.advantages import generalised_advantages, truncated_returns
from finegrained_rlhf.rl.kl import log_ratio_kl
from finegrained_rlhf.rl.stats import Reduce, masked_whiten
from finegrained_rlhf.training.ppo.config import PPOConfig


def check_components_add_up(trace: RewardTrace) -> None:
    """Require Σ_k weighted_k = total, to 1e-5 of the largest reward.

    Raises:
        ConsistencyError: they differ.
    """
    if not trace.total.numel():
        return
    added = torch.stack([component.weighted.double() for component in trace.components.values()]).sum(dim=0)
    difference = float((added - trace.total.double()).abs().max())
    if difference > 1e-5 * max(1.0, float(trace.total.abs().max())):
        raise ConsistencyError(f"weighted reward components differ from the trained reward by {difference:.3g}")


def make_experience(
    rollout: Rollout,
    trace: RewardTrace,
    reference_logprobs: Tensor,
    values: Tensor,
    *,
    beta: float,
    config: PPOConfig,
    reduce: Reduce,
) -> Experience:
    """Rewards r_t = Σ_k weighted_k,t − β·KL_t, whitened; advantages and value targets.

    The KL penalty enters before the rewards are whitened, and whitening keeps the mean, as in the original code.

    Args:
        rollout: R responses.
        trace: their component rewards.
        reference_logprobs: fp32 [R, T].
        values: fp32 [R, T] before the update.
        beta: β of this step.
        config: PPO settings.
        reduce: sums a small tensor over all processes.
    """
    check_components_add_up(trace)
    mask, root = rollout.response_mask, config.compat.whiten_by_root_std
    rewards = trace.total - beta * log_ratio_kl(rollout.logprobs, reference_logprobs, mask)
    if config.whiten_rewards:
        rewards = masked_whiten(rewards, mask, shift_mean=False, by_root_std=root, reduce=reduce)
    advantages, returns = generalised_advantages(
        rewards, values, mask, discount=config.discount, lambda_=config.lambda_
    )
    if config.value_target == "truncated":
        returns = truncated_returns(rewards, mask, discount=config.discount)
    if config.whiten_advantages:
        advantages = masked_whiten(advantages, mask, by_root_std=root, reduce=reduce)
    return Experience(rollout, trace, reference_logprobs, values * mask, rewards, advantages, returns)
