"""A guard around any reward of rewrites: repetition and length cost something.

A retriever does not mind a phrase that is repeated to the limit of tokens, and rewards of what it finds do not either.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated

from finegrained_rlhf.conqrr.rewards.base import RewardInputs, RewriteReward, RewriteRewardConfig
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import at_least
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.metrics.functions import repeated_bigram_share, words_with_letters


@dataclass(frozen=True)
class GuardedReward(Settings):
    """Another reward, less λ · (share of repeated word pairs), less μ · (words above a limit). See `guard_penalty`.

    Attributes:
        reward: the other one.
        repetition: λ ≥ 0, what a rewrite loses that says nothing but the same two words.
        longest: words that cost nothing; None sets no limit.
        word: μ ≥ 0, what each word above it costs.
    """

    reward: RewriteRewardConfig
    repetition: Annotated[float, at_least(0)] = 0.5
    longest: Annotated[int | None, at_least(1)] = None
    word: Annotated[float, at_least(0)] = 0.05

    @property
    def needs_labels(self) -> bool:
        """As the other reward."""
        return self.reward.needs_labels

    def build(self, inputs: RewardInputs) -> GuardedScores:
        """See `RewriteRewardConfig`.

        Raises:
            ConfigError: the other reward cannot be built.
        """
        return GuardedScores(self.reward.build(inputs), self)


class GuardedScores:
    """The scores of a reward, each less the penalty of its text. Satisfies `RewriteReward`.

    Args:
        reward: scores rewrites.
        settings: of the penalty.
    """

    def __init__(self, reward: RewriteReward, settings: GuardedReward) -> None:
        self.reward, self.settings = reward, settings
        self.rewarded: Collection[str] = reward.rewarded

    def score(self, step_prompts: Sequence[Prompt], prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
        """See `ResponseReward.score`."""
        scores, s = self.reward.score(step_prompts, prompts, texts), self.settings
        penalties = [guard_penalty(text, s.repetition, s.longest, s.word) for text in texts]
        return [float(score) - penalty for score, penalty in zip(scores, penalties, strict=True)]


def guard_penalty(text: str, repetition: float, longest: int | None, word: float) -> float:
    """λ · repeated_bigram_share(text) + μ · max(0, words − longest); 0 for a short text without repetitions.

    Args:
        text: a rewrite.
        repetition: λ.
        longest: words that cost nothing; None sets no limit.
        word: μ.
    """
    words = words_with_letters(text)
    excess = 0 if longest is None else max(0, len(words) - longest)
    return repetition * repeated_bigram_share(words) + word * excess
