"""PPO's advantages: GAE over token rewards and values, of one value head or of one a component."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.records import ValueHeads
from finegrained_rlhf.rl.advantages import generalised_advantages, truncated_returns
from finegrained_rlhf.rl.stats import Reduce, Whitening, whitening
from finegrained_rlhf.training.ppo.advantages.protocol import (
    BASELINE,
    KL,
    Estimate,
    RewardedRollout,
    unit_rewards,
)
from finegrained_rlhf.training.ppo.config import PPOConfig

if TYPE_CHECKING:
    from torch import Tensor


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
