"""Advantages of responses in turns: any estimator, over the tokens that the policy wrote.

What the environment says is no action: it is a part of the step from a turn's last token to the next turn's first. So
its tokens are taken out before an estimator sees the rows, and what it gives is put back where the tokens stand.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from finegrained_rlhf.core.records import ComponentTrace, RewardTrace, Rollout, ValueHeads
from finegrained_rlhf.rl.stats import Reduce
from finegrained_rlhf.training.ppo.advantages import AdvantageEstimator, Estimate, RewardedRollout
from finegrained_rlhf.training.ppo.config import PPOConfig

if TYPE_CHECKING:
    from torch import Tensor


class _Written:
    """The tokens that the policy wrote in R responses [R, T], moved together: [R, W]."""

    def __init__(self, rollout: Rollout) -> None:
        import torch

        written = rollout.written
        self._counts = written.sum(dim=1)
        width = max(int(self._counts.max()), 1) if len(written) else 1
        self._width = written.shape[1]
        self._index = (1 - written).argsort(dim=1, stable=True)[:, :width]
        self._places = (written.cumsum(dim=1) - 1).tolist()
        self.mask = (torch.arange(width, device=written.device) < self._counts[:, None]).long()

    def taken(self, tensor: Tensor) -> Tensor:
        """[R, W, …] of [R, T, …], 0 at padding."""
        return self._each(tensor.flatten(2) if tensor.dim() > 2 else tensor[:, :, None], tensor, back=False)

    def back(self, tensor: Tensor) -> Tensor:
        """[R, T, …] of [R, W, …], 0 at other tokens."""
        return self._each(tensor.flatten(2) if tensor.dim() > 2 else tensor[:, :, None], tensor, back=True)

    def _each(self, wide: Tensor, like: Tensor, back: bool) -> Tensor:
        index = self._index[:, :, None].expand(-1, -1, wide.shape[2])
        if back:
            rows = wide.new_zeros(wide.shape[0], self._width, wide.shape[2]).scatter(1, index, wide)
        else:
            rows = wide.gather(1, index) * self.mask[:, :, None].to(wide.dtype)
        return rows if like.dim() > 2 else rows.squeeze(2)

    def component(self, component: ComponentTrace) -> ComponentTrace:
        """A component's trace over these tokens."""
        rows = zip(component.tokens, self._places, strict=True)
        return replace(
            component,
            raw=self.taken(component.raw),
            normalised=self.taken(component.normalised),
            weighted=self.taken(component.weighted),
            tokens=[tuple(places[token] for token in tokens) for tokens, places in rows],
        )

    def rollout(self, rollout: Rollout) -> Rollout:
        """The responses as if nobody else had spoken in them; their texts stay."""
        talks = [[t for first, end in talk.tokens for t in range(first, end)] for talk in rollout.turns]
        return replace(
            rollout,
            response_ids=self.taken(rollout.response_ids),
            response_mask=self.mask,
            logprobs=self.taken(rollout.logprobs),
            token_ends=[tuple(ends[t] for t in talk) for ends, talk in zip(rollout.token_ends, talks, strict=True)],
            sampler_logprobs=None if rollout.sampler_logprobs is None else self.taken(rollout.sampler_logprobs),
            turns=(),
            support=None,
        )


def estimate_of_turns(
    estimator: AdvantageEstimator, given: RewardedRollout, config: PPOConfig, reduce: Reduce
) -> Estimate:
    """What an estimator gives for responses in turns; every process must call this.

    Args:
        estimator: of advantages.
        given: the responses of this process, their rewards on tokens that the policy wrote.
        config: of the update.
        reduce: sums a small tensor over all processes.
    """
    own, trace = _Written(given.rollout), given.trace
    components = {name: own.component(component) for name, component in trace.components.items()}
    made = estimator.estimate(
        RewardedRollout(
            own.rollout(given.rollout),
            RewardTrace(components, own.taken(trace.total), trace.metrics),
            None if given.penalty is None else own.taken(given.penalty),
            None if given.values is None else own.taken(given.values),
            given.learnt,
        ),
        config,
        reduce,
    )
    return Estimate(
        own.back(made.rewards),
        own.back(made.advantages),
        {name: own.back(share) for name, share in made.shares.items()},
        None if made.values is None else own.back(made.values),
        None if made.returns is None else own.back(made.returns),
        None if made.heads is None else ValueHeads(own.back(made.heads.values), own.back(made.heads.returns)),
        made.learnt,
    )
