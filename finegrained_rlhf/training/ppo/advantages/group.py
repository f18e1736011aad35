"""Advantages without a value model: RLOO, GRPO, Dr. GRPO, GDPO and REINFORCE, on one number a response or on segments.

The algorithms differ in five choices, which are the fields of `GroupAdvantages`; `conf/algorithm/` gives the published
ones their names. Formulas are in `rl/group.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.rl.group import (
    EPSILON,
    Compared,
    compare_outcomes,
    compare_returns,
    compare_segments,
    rewards_to_go,
)
from finegrained_rlhf.rl.stats import Reduce, masked_mean, whitening
from finegrained_rlhf.training.ppo.advantages.protocol import (
    BASELINE,
    KL,
    Estimate,
    RewardedRollout,
    segment_ends,
    unit_rewards,
)
from finegrained_rlhf.training.ppo.config import PPOConfig

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class GroupAdvantages(Settings):
    """Advantages of responses over the other responses to their prompt (their group), or over the batch.

    Attributes:
        baseline: what is subtracted: `leave_one_out`, the mean of the group's other responses (RLOO); `group_mean`,
            the mean of all of them (GRPO); `batch_mean`, that of all responses of the step (REINFORCE).
        scale: `std` divides by the group's standard deviation (GRPO), `none` does not (Dr. GRPO).
        credit: what a token's advantage is made of: `outcome`, the sum of all rewards of its response; `process`, every
            segment's reward against all segments of the group, summed over the segments that end at the token or
            later (DeepSeekMath); `returns`, the rewards from the token on against what the group earned from the same
            place on.
        position: where `credit=returns` compares: `segment`, from the segment of the same number on; `share`, from the
            same share of a response's tokens on. With `batch_mean` all tokens have one baseline.
        by_component: every component is compared on its own, before its weight, and the weights multiply the
            advantages; else their weighted sum is compared.
        whiten: advantages are scaled to mean 0 and variance 1 over the responses of all processes (over their tokens,
            where `credit` is not `outcome`); with `by_component` and `scale=std` this is GDPO.
    """

    baseline: Literal["leave_one_out", "group_mean", "batch_mean"] = "leave_one_out"
    scale: Literal["none", "std"] = "none"
    credit: Literal["outcome", "process", "returns"] = "outcome"
    position: Literal["segment", "share"] = "segment"
    by_component: bool = False
    whiten: bool = False

    def __post_init__(self) -> None:
        if self.scale == "std" and self.baseline != "group_mean":
            raise ConfigError(
                f"algorithm.scale=std divides by the spread about algorithm.baseline=group_mean, not {self.baseline}; "
                "algorithm.whiten=true scales over the batch"
            )

    @property
    def critic(self) -> bool:
        """There is no value model."""
        return False

    def value_heads(self, components: Sequence[str], config: PPOConfig) -> int:
        """None."""
        return 0

    def check(self, config: PPOConfig, samples: int) -> None:
        """Refuse one sample a prompt, a discount, and a KL penalty that has no unit in common with the rewards.

        Raises:
            ConfigError: the first of them.
        """
        if samples < 2 and self.baseline != "batch_mean":
            raise ConfigError(
                f"rollout.samples_per_prompt: algorithm.baseline={self.baseline} compares the responses to a prompt "
                f"and needs at least 2, got {samples}"
            )
        if config.discount != 1.0:
            raise ConfigError(f"ppo.discount: this algorithm does not discount; expected 1.0, got {config.discount}")
        if config.kl.place == "reward" and self.scale == "std" and (self.by_component or self.credit != "outcome"):
            raise ConfigError(
                "ppo.kl.place: rewards that are standardised by segment or by component have no unit in which the KL "
                "penalty could be one of them; expected loss, got reward"
            )

    def estimate(self, given: RewardedRollout, config: PPOConfig, reduce: Reduce) -> Estimate:
        """Advantages with the share of each component and of the KL penalty; the shares are exact sums.

        Where `scale=std` divides by the spread of the whole reward, a share is what is left of it with that spread held
        fixed. What whitening subtracts is the share `baseline`.
        """
        import torch

        given = replace(given, learnt=self._learnt(given))
        mask = given.mask
        found = self._by_component(given, reduce) if self.by_component else self._of_the_sum(given, reduce)
        advantages = sum(found.values(), torch.zeros_like(mask, dtype=torch.float64))
        if self.whiten:
            one = mask.cumsum(dim=1) == 1  # a response counts once, with its first token, whose advantage all have
            counted = mask.bool() & one if self.credit == "outcome" else mask
            whiten = whitening(advantages, counted, reduce=reduce)
            advantages = whiten(advantages, mask)
            found = {name: share * whiten.factor for name, share in found.items()}
            found[BASELINE] = advantages - sum(found.values(), torch.zeros_like(advantages))
        shares = {name: share.float() for name, share in found.items()}
        return Estimate(given.rewards(), advantages.float(), shares, learnt=given.learnt)

    def _learnt(self, given: RewardedRollout) -> Tensor | None:
        """Of the responses with a reward those that have another one in their group, where groups are compared."""
        if given.learnt is None or self.baseline == "batch_mean" or not len(given.learnt):
            return given.learnt
        groups = given.rollout.prompt_index.to(given.learnt.device)
        learnt = given.learnt.long()
        in_group = learnt.new_zeros(int(groups.max()) + 1).index_add_(0, groups, learnt)
        return given.learnt & (in_group[groups] > 1)

    # Each gives fp64 [R, T] by name, to be added up ----------------------------------------------------------------

    def _by_component(self, given: RewardedRollout, reduce: Reduce) -> dict[str, Tensor]:
        found = {}
        for name, component in given.trace.components.items():
            compared = self._compared(unit_rewards(component), segment_ends(component, given.mask), given, reduce)
            values = compared.divided() if self.scale == "std" else compared.centred
            found[name] = component.weight * self._on_tokens(values, given.mask)
        return {**found, **self._of_the_penalty(given, reduce)}

    def _of_the_sum(self, given: RewardedRollout, reduce: Reduce) -> dict[str, Tensor]:
        import torch

        components = given.trace.components
        ends = torch.zeros_like(given.mask, dtype=torch.bool)
        for component in components.values():
            ends |= segment_ends(component, given.mask)
        parts = {name: component.weighted for name, component in components.items()}
        total = given.trace.total
        if self.credit == "outcome" and given.penalty is not None:
            parts, total = {**parts, KL: -given.penalty}, given.rewards()
        divisor: Tensor | float = 1.0
        if self.scale == "std":
            divisor = self._compared(total, ends, given, reduce).spread + EPSILON
        found = {
            name: self._on_tokens(self._compared(part, ends, given, reduce).centred / divisor, given.mask)
            for name, part in parts.items()
        }
        return found if KL in found else {**found, **self._of_the_penalty(given, reduce)}

    def _of_the_penalty(self, given: RewardedRollout, reduce: Reduce) -> dict[str, Tensor]:
        """The KL penalty as one more component, of which every token is a segment."""
        if given.penalty is None:
            return {}
        compared = self._compared(-given.penalty, given.mask.bool(), given, reduce)
        return {KL: self._on_tokens(compared.centred, given.mask)}

    def _compared(self, rewards: Tensor, ends: Tensor, given: RewardedRollout, reduce: Reduce) -> Compared:
        """Rewards [R, T] with segments that end at `ends` against their baseline: [R] for outcomes, else [R, T]."""
        if given.learnt is None:
            return self._compare(rewards, ends, given.mask, given.rollout.prompt_index, reduce)
        rows = given.learnt
        groups = given.rollout.prompt_index[rows.to(given.rollout.prompt_index.device)]
        few = self._compare(rewards[rows], ends[rows], given.mask[rows], groups, reduce)
        shape = (len(rows), *few.centred.shape[1:])
        all_rows = [few.centred.new_zeros(shape).index_put_((rows,), part) for part in (few.centred, few.spread)]
        return Compared(*all_rows)

    def _compare(self, rewards: Tensor, ends: Tensor, mask: Tensor, groups: Tensor, reduce: Reduce) -> Compared:
        import torch

        alone = self.baseline == "leave_one_out"
        if self.credit == "outcome":
            scores = (rewards.double() * mask).sum(dim=1)
            if self.baseline == "batch_mean":
                return _less_the_mean(scores, torch.ones_like(scores), reduce)
            return compare_outcomes(scores, groups, leave_one_out=alone)
        if self.baseline == "batch_mean":
            if self.credit == "process":
                return _less_the_mean(rewards.double(), ends, reduce)
            return _less_the_mean(rewards_to_go(rewards, mask), mask, reduce)
        if self.credit == "process":
            return compare_segments(rewards, ends, groups, leave_one_out=alone)
        return compare_returns(rewards, ends, mask, groups, at=self.position, leave_one_out=alone)

    def _on_tokens(self, values: Tensor, mask: Tensor) -> Tensor:
        """fp64 [R, T] from what `_compared` gives."""
        if self.credit == "outcome":
            return values[:, None] * mask
        return rewards_to_go(values, mask) if self.credit == "process" else values * mask


def _less_the_mean(values: Tensor, counted: Tensor, reduce: Reduce) -> Compared:
    """Values less their mean where `counted` is 1, over all processes; no spread."""
    import torch

    centred = (values - masked_mean(values, counted, reduce)) * counted
    return Compared(centred, torch.zeros_like(centred))
