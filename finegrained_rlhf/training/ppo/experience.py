"""From a rollout and its rewards to what a policy learns from. All statistics are global over the processes."""

from __future__ import annotations

import torch
from torch import Tensor

from finegrained_rlhf.core.errors import ConsistencyError
from finegrained_rlhf.core.records import Experience, ImportanceWeights, RewardTrace, Rollout
from finegrained_rlhf.rl.kl import kl_estimates
from finegrained_rlhf.rl.stats import Reduce
from finegrained_rlhf.training.ppo.advantages import GAE, AdvantageEstimator, RewardedRollout
from finegrained_rlhf.training.ppo.config import PPOConfig
from finegrained_rlhf.training.ppo.turns import estimate_of_turns


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
    values: Tensor | None,
    *,
    beta: float,
    config: PPOConfig,
    reduce: Reduce,
    algorithm: AdvantageEstimator | None = None,
    importance: ImportanceWeights | None = None,
    kl: Tensor | None = None,
    reference_states: Tensor | None = None,
    masked: Tensor | None = None,
) -> Experience:
    """Rewards r_t = Σ_k weighted_k,t − β·KL_t, or without the KL where it is part of the loss; what the algorithm makes
    of them. A response that some component has no score of is not learnt from.

    Args:
        rollout: R responses.
        trace: their component rewards.
        reference_logprobs: fp32 [R, T].
        values: fp32 [R, T] before the update, [R, T, K] of K value heads; None without a value model.
        beta: β of this step.
        config: PPO settings.
        reduce: sums a small tensor over all processes.
        algorithm: makes advantages; GAE where None.
        importance: weights of the policy loss; None where there are none.
        kl: fp32 [R, T] over the vocabulary; needed by `ppo.kl.estimator=exact` in the reward.
        reference_states: float [R, T, D]; needed by it in the loss.
        masked: bool [R], responses that are paid the baseline; None: none is.
    """
    check_components_add_up(trace)
    penalty = None
    if config.kl.in_reward:
        estimator = config.kl.estimator
        if estimator == "exact":
            assert kl is not None
            penalty = beta * kl
        else:
            estimates = kl_estimates(rollout.logprobs, reference_logprobs, rollout.written, estimator)
            penalty = beta * estimates.detach()
    rewarded = RewardedRollout(rollout, trace, penalty, values, trace.scored)
    chosen = algorithm or GAE()
    in_turns = bool(rollout.turns)
    made = (
        estimate_of_turns(chosen, rewarded, config, reduce) if in_turns else chosen.estimate(rewarded, config, reduce)
    )
    learnt = rewarded.learnt if made.learnt is None else made.learnt
    advantages, shares = made.advantages, made.shares
    if masked is not None:
        masked = masked if learnt is None else masked & learnt
        learnt = ~masked if learnt is None else learnt & ~masked
        advantages = torch.where(masked[:, None], 0.0, advantages)
        shares = {name: torch.where(masked[:, None], 0.0, share) for name, share in shares.items()}
    return Experience(
        rollout,
        trace,
        reference_logprobs,
        made.values,
        made.rewards,
        advantages,
        made.returns,
        shares,
        made.heads,
        importance,
        kl,
        reference_states,
        learnt,
        masked,
    )


def without_advantages(rollout: Rollout, trace: RewardTrace, reference_logprobs: Tensor) -> Experience:
    """The experience of responses that nothing is learnt from and that have no others to be compared with.

    Args:
        rollout: R responses.
        trace: their component rewards.
        reference_logprobs: fp32 [R, T].
    """
    nothing = torch.zeros_like(trace.total)
    return Experience(rollout, trace, reference_logprobs, None, trace.total, nothing, None)
