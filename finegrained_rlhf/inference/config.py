"""How responses are chosen, as a user writes it: decoding, and what the best of several samples needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.records import Decoding, Greedy, Sample
from finegrained_rlhf.rewards.config import RewardConfig
from finegrained_rlhf.rollout.config import RolloutConfig


@dataclass(frozen=True)
class DecodingConfig(Settings):
    """How responses are chosen, as a user writes it.

    Attributes:
        n: responses a prompt.
        temperature: divides the logits; 0 is greedy decoding.
        top_k: keep the k most probable tokens; 0 keeps all.
        top_p: keep the smallest set of tokens whose probability reaches p; 1.0 keeps all.
    """

    n: int = 1
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if self.temperature == 0 and (self.n, self.top_k, self.top_p) != (1, 0, 1.0):
            raise ConfigError("decoding: n, top_k and top_p are for sampling: set decoding.temperature above 0 too")
        try:
            self.build()
        except ValueError as error:
            raise ConfigError(f"decoding: {error}") from None

    def build(self) -> Decoding:
        """The decoding of the rollout engine."""
        return Greedy() if self.temperature == 0 else Sample(self.n, self.temperature, self.top_k, self.top_p)


def sampling(decoding: DecodingConfig, n: int) -> Decoding:
    """How n samples a prompt are drawn: as `decoding` says; where it is greedy, as in training (T 0.7, top-k 20).

    Raises:
        ConfigError: n is below 1, or `decoding.n` asks for several responses beside.
    """
    if n < 1:
        raise ConfigError(f"best_of must be at least 1, got {n}")
    if n == 1:
        return decoding.build()
    if decoding.n != 1:
        raise ConfigError(f"best_of={n} keeps one of {n} samples a prompt: leave decoding.n at 1, got {decoding.n}")
    drawn = decoding.build()
    if isinstance(drawn, Greedy):
        return Sample(n, RolloutConfig.temperature, RolloutConfig.top_k, RolloutConfig.top_p)
    return Sample(n, drawn.temperature, drawn.top_k, drawn.top_p)


def check_reward(reward: Any, needed: bool) -> None:
    """Require a reward where one is needed, and none that is only half given.

    Raises:
        ConfigError: otherwise.
    """
    if reward is None:
        if needed:
            raise ConfigError("best_of needs a reward: reward=NAME, or the checkpoint of a PPO run, whose own is taken")
    elif not isinstance(reward, RewardConfig):
        raise ConfigError("reward: weights and settings change a reward; name one first (reward=NAME)")
