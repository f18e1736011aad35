"""What an estimator of advantages is given and gives. Knows no algorithm, no model and no process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.records import ComponentTrace, RewardTrace, Rollout, ValueHeads, learnt_tokens
from finegrained_rlhf.rl.stats import Reduce
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
    """fp32 [R, T]: a component's rewards before its weight, at the tokens that carry them; 0 behind a closed gate."""
    import torch

    if component.gate is None:
        return component.normalised
    is_open = torch.tensor(component.gate, dtype=torch.bool, device=component.normalised.device)
    return torch.where(is_open[:, None], component.normalised, 0.0)


def segment_ends(component: ComponentTrace, mask: Tensor) -> Tensor:
    """Bool [R, T]: the tokens that carry a segment of the component; segments that share a token share its mark.

    Args:
        component: of R responses.
        mask: int [R, T].
    """
    import torch

    ends = torch.zeros(mask.shape, dtype=torch.bool)
    for row, tokens in enumerate(component.tokens):
        ends[row, list(tokens)] = True
    return ends.to(mask.device) & mask.bool()
