"""How responses are chosen, as a user writes it: decoding, and what the best of several samples needs.

Also what measures responses beside the reward: the protocol `ResponseMonitor`, and the rates of what was counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.records import Decoding, Greedy, Prompt, Sample
from finegrained_rlhf.rewards.config import RewardConfig
from finegrained_rlhf.rollout.config import RolloutConfig


class ResponseMonitor(Protocol):
    """Measures responses beside the reward, for example by an oracle. It never enters training or selection."""

    def counts(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> Mapping[str, tuple[float, float]]:
        """(sum, count) of each measurement of R responses; the same names for every input, the empty one included."""


def check_monitor(monitor: ResponseMonitor | None, prompts: Sequence[Prompt]) -> None:
    """Let a monitor that has `check_prompts` refuse prompts that lack what it reads, before anything is answered.

    Raises:
        DataError: it refuses one.
    """
    if check := getattr(monitor, "check_prompts", None):
        check(prompts)


def oracle_rates(counts: Sequence[Mapping[str, tuple[float, float]]]) -> dict[str, float]:
    """The rates of an oracle over all that it counted; 0 where there is nothing to count.

    Args:
        counts: (found, of how many) by name of the rate, part by part.
    """
    rates: dict[str, float] = {}
    for name in counts[0] if counts else ():
        errors, of = (sum(part[name][place] for part in counts) for place in (0, 1))
        rates[name] = errors / of if of else 0.0
    return rates


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
