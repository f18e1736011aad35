"""From token rewards to advantages: what an estimator is given and gives, and the estimators.

`GAE` is PPO's, over token rewards and values, of one value head or of one a component. `GroupAdvantages` needs no value
model: RLOO, GRPO, Dr. GRPO, GDPO and REINFORCE, on one number a response or on segments, differ in five choices, which
are its fields; `conf/algorithm/` gives the published ones their names. Formulas are in `rl/group.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.records import ComponentTrace, RewardTrace, Rollout, ValueHeads, learnt_tokens
from finegrained_rlhf.rl.advantages import generalised_advantages, truncated_returns
from finegrained_rlhf.rl.group import (
    EPSILON,
    Compared,
    compare_outcomes,
    compare_returns,
    compare_segments,
    rewards_to_go,
)
from finegrained_rlhf.rl.stats import Reduce, Whitening, masked_mean, whitening
from finegrained_rlhf.training.ppo.config import PPOConfig

if TYPE_CHECKING:
    from torch import Tensor


KL, BASELINE = "kl", "baseline"
"""Shares in the advantages that are no component's."""


@dataclass(frozen=True)
class RewardedRollout:
    """Responses with all that their advantages follow from.

    Attributes:
        rollout: R responses.
        trace: their component rewards.
        penalty: fp32 [R, T], β·KL of each token; None where the KL is part of the loss.
        values: fp32 [R, T], or [R, T, K] of K value heads, before the update; None without a value model.
        learnt: bool [R], the responses that are learnt from (`Experience`); None: all.
    """

    rollout: Rollout
    trace: RewardTrace
    penalty: Tensor | None
    values: Tensor | None
    learnt: Tensor | None = None

    @property
    def mask(self) -> Tensor:
        """Int [R, T], 1 = real token of a response that is learnt from."""
        return learnt_tokens(self.rollout.response_mask, self.learnt)

    def rewards(self) -> Tensor:
        """fp32 [R, T]: Σ_k weighted_k, less the penalty where there is one."""
        return self.trace.total if self.penalty is None else self.trace.total - self.penalty


@dataclass(frozen=True)
class Estimate:
    """What an estimator gives.

    Attributes:
        rewards: fp32 [R, T] as trained.
        advantages: fp32 [R, T], 0 at padding.
        shares: fp32 [R, T] by name; they add up to the advantages (`Experience`).
        values: fp32 [R, T]; None without a value model.
        returns: fp32 [R, T], value targets; None without a value model.
        heads: of several value heads.
        learnt: bool [R], of the responses that were given those that are learnt from; None: all of them.
    """

    rewards: Tensor
    advantages: Tensor
    shares: Mapping[str, Tensor] = field(default_factory=dict)
    values: Tensor | None = None
    returns: Tensor | None = None
    heads: ValueHeads | None = None
    learnt: Tensor | None = None


@runtime_checkable
class AdvantageEstimator(Protocol):
    """An algorithm, as far as algorithms differ: how token rewards become advantages."""

    @property
    def critic(self) -> bool:
        """Whether it needs a value model."""

    def value_heads(self, components: Sequence[str], config: PPOConfig) -> int:
        """How many heads its value model has for a reward of these components; 0 without a value model."""

    def check(self, config: PPOConfig, samples: int) -> None:
        """Refuse settings that this algorithm cannot use.

        Args:
            config: of the update.
            samples: responses a prompt.

        Raises:
            ConfigError: the first of them.
        """

    def estimate(self, given: RewardedRollout, config: PPOConfig, reduce: Reduce) -> Estimate:
        """Advantages of the responses; every process must call this.

        Args:
            given: the responses of this process; may be none. All responses to a prompt are on one process.
            config: of the update.
            reduce: sums a small tensor over all processes.
        """


def check_values(kind: str, algorithm: AdvantageEstimator) -> None:
    """Require a value model where the algorithm learns from one, and none where it does not.

    Args:
        kind: of the value model: `separate`, `shared` or `none`.
        algorithm: the estimator.

    Raises:
        ConfigError: the two do not fit.
    """
    name = type(algorithm).__name__
    if algorithm.critic and kind == "none":
        raise ConfigError(f"value=none: {name} (algorithm=ppo) learns a value model; expected separate or shared")
    if not algorithm.critic and kind != "none":
        raise ConfigError(f"value.kind={kind}: {name} learns no value model; leave value=… away, or set value=none")


def unit_rewards(component: ComponentTrace) -> Tensor:
    """fp32 [R, T]: a component's rewards before its weight, where they are paid; 0 behind a closed gate."""
    import torch

    if component.gate is None or component.corrections is not None:
        return component.normalised
    is_open = torch.tensor(component.gate, dtype=torch.bool, device=component.normalised.device)
    return torch.where(is_open[:, None], component.normalised, 0.0)


def segment_ends(component: ComponentTrace, mask: Tensor) -> Tensor:
    """Bool [R, T]: the tokens at which the component pays; segments that share a token share its mark.

    Args:
        component: of R responses.
        mask: int [R, T].
    """
    import torch

    ends = torch.zeros(mask.shape, dtype=torch.bool)
    for row in range(len(mask)):
        ends[row, component.paid_tokens(row)] = True
    return ends.to(mask.device) & mask.bool()


@dataclass(frozen=True)
class GAE(Settings):
    """Generalised advantage estimation with a value model (`algorithm=ppo`); discount, λ and whitening are `ppo`'s.

    With one head, V is learnt for the sum of all rewards. With one head a component, each learns its own component's
    rewards before their weight, and the weights multiply advantages: A = Σ_k w_k A_k. The KL penalty has a head of its
    own where it is part of the reward. The rewards of all heads are divided by one number, the standard deviation of
    their weighted sum.

    Attributes:
        per_component: one value head and one advantage a reward component.
    """

    per_component: bool = False

    @property
    def critic(self) -> bool:
        """It needs a value model."""
        return True

    def value_heads(self, components: Sequence[str], config: PPOConfig) -> int:
        """One, or one a component."""
        return len(components) + (config.kl.place == "reward") if self.per_component else 1

    def check(self, config: PPOConfig, samples: int) -> None:
        """Any settings, and any number of samples a prompt, will do."""

    def estimate(self, given: RewardedRollout, config: PPOConfig, reduce: Reduce) -> Estimate:
        """Rewards whitened, the KL penalty in them; GAE; advantages whitened.

        The penalty enters before the rewards are whitened, and whitening keeps the mean, as in the original code.
        """
        assert given.values is not None
        mask, root = given.mask, config.compat.whiten_by_root_std
        rewards, scale = given.rewards(), None
        if config.whiten_rewards:
            scale = whitening(rewards, mask, by_root_std=root, reduce=reduce)
            rewards = scale(rewards, mask, shift_mean=False)
        heads = None
        if self.per_component:
            heads, values, advantages = _by_head(given, scale, config)
            returns = advantages + values
            if config.value_target == "truncated":
                returns = (heads.returns * _weights(given)).sum(dim=2)
        else:
            values = given.values * mask
            advantages, returns = generalised_advantages(
                rewards, given.values, mask, discount=config.discount, lambda_=config.lambda_
            )
            if config.value_target == "truncated":
                returns = truncated_returns(rewards, mask, discount=config.discount)
        factor = 1.0 if scale is None else float(scale.factor)
        if config.whiten_advantages:
            whiten = whitening(advantages, mask, by_root_std=root, reduce=reduce)
            advantages, factor = whiten(advantages, mask), factor * float(whiten.factor)
        shares = _shares(given, config, factor, advantages)
        return Estimate(rewards, advantages, shares, values, returns, heads)


def _parts(given: RewardedRollout) -> dict[str, Tensor]:
    """The weighted rewards [R, T] that the trained ones are the sum of, by name; the penalty last."""
    parts = {name: component.weighted for name, component in given.trace.components.items()}
    return parts if given.penalty is None else {**parts, KL: -given.penalty}


def _shares(given: RewardedRollout, config: PPOConfig, factor: float, advantages: Tensor) -> Mapping[str, Tensor]:
    """GAE is linear in rewards and values: a part's share is Σ_l (γλ)^l r_{t+l}, times what whitening multiplies by."""
    import torch

    parts, mask = _parts(given), given.mask
    stacked = torch.cat([part * factor for part in parts.values()]) if parts else advantages[:0]
    found = truncated_returns(stacked, mask.repeat(len(parts), 1), discount=config.discount * config.lambda_)
    shares = dict(zip(parts, found.split(max(len(mask), 1)) if len(mask) else [advantages] * len(parts), strict=True))
    return {**shares, BASELINE: advantages - sum(shares.values(), torch.zeros_like(advantages))}


def _head_names(given: RewardedRollout) -> list[str]:
    """The component of each head, in the order of names, so that the order of a configuration does not matter."""
    return sorted(given.trace.components)


def _weights(given: RewardedRollout) -> Tensor:
    """fp32 [K]: what multiplies each head's advantages."""
    import torch

    weights = [given.trace.components[name].weight for name in _head_names(given)]
    weights += [] if given.penalty is None else [1.0]
    return torch.tensor(weights, dtype=torch.float32, device=given.mask.device)


def _by_head(given: RewardedRollout, scale: Whitening | None, config: PPOConfig) -> tuple[ValueHeads, Tensor, Tensor]:
    """Values and targets of each head, and the weighted sums [R, T] of values and of advantages."""
    import torch

    assert given.values is not None
    mask = given.mask
    rewards = [unit_rewards(given.trace.components[name]) for name in _head_names(given)]
    rewards += [] if given.penalty is None else [-given.penalty]
    count, (rows, width) = len(rewards), mask.shape
    factor = 1.0 if scale is None else float(scale.factor)
    stacked = torch.cat(rewards) * factor
    real = mask.repeat(count, 1)
    values = (given.values * mask[:, :, None]).permute(2, 0, 1).reshape(count * rows, width)
    advantages, returns = generalised_advantages(
        stacked, values, real, discount=config.discount, lambda_=config.lambda_
    )
    if config.value_target == "truncated":
        returns = truncated_returns(stacked, real, discount=config.discount)

    def last(tensor: Tensor) -> Tensor:
        return tensor.reshape(count, rows, width).permute(1, 2, 0)

    weights = _weights(given)
    heads = ValueHeads(last(values), last(returns))
    return heads, (heads.values * weights).sum(dim=2), (last(advantages) * weights).sum(dim=2)


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
