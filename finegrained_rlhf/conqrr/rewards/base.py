"""What a reward of rewrites is, how a configuration names one, and a control that deals its scores out at random.

A configuration names a reward by `_target_` (`conf/rewrite_reward/`): a `RewriteRewardConfig`, whose `build` makes the
reward of a run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from finegrained_rlhf.conqrr.records import PassageLabel, RewriteExample
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.retrieval.protocol import Retriever
from finegrained_rlhf.training.self_critical.config import ResponseReward


@dataclass(frozen=True)
class RewardInputs:
    """What a reward may be made from.

    Attributes:
        examples: the questions to train on and to select by, by id.
        labels: passage labels by question id; empty without a file of labels.
        retriever: the index; None without one.
    """

    examples: Mapping[str, RewriteExample]
    labels: Mapping[str, PassageLabel]
    retriever: Retriever | None


class RewriteReward(ResponseReward, Protocol):
    """What rewrites are worth: `score`, of the trainer's `ResponseReward`, and which questions it can score.

    The ids of the prompts that `score` is given are those of their questions.

    Attributes:
        rewarded: ids of the questions whose rewrites can be scored.
    """

    rewarded: Collection[str]


class RewriteRewardConfig(Protocol):
    """The settings of a reward, as YAML names them."""

    @property
    def needs_labels(self) -> bool:
        """Whether it cannot be built without passage labels and an index; a class variable will do."""
        ...

    def build(self, inputs: RewardInputs) -> RewriteReward:
        """The reward of a run.

        Raises:
            ConfigError: the settings need something that the run does not have.
        """
        ...


def label_of(labels: Mapping[str, PassageLabel], prompt: Prompt) -> PassageLabel:
    """The passage label of a prompt's question.

    Raises:
        DataError: it has none.
    """
    if prompt.id not in labels:
        raise DataError("expected a passage label", record=prompt.id, field="positive")
    return labels[prompt.id]


class ShuffledReward:
    """A control: the scores of a reward are dealt out to the rewrites of a call anew, at random: they say nothing.

    Satisfies `RewriteReward`.

    Args:
        reward: whose scores are dealt out.
        seed: of that.
    """

    def __init__(self, reward: RewriteReward, seed: int) -> None:
        self.reward, self.seed, self.rewarded = reward, seed, reward.rewarded

    def score(self, step_prompts: Sequence[Prompt], prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
        """See `ResponseReward.score`."""
        scores = np.array(self.reward.score(step_prompts, prompts, texts), dtype=float)
        names = [prompt.id for prompt in prompts]
        return [float(s) for s in np.random.default_rng(stable_hash(self.seed, "shuffle", *names)).permutation(scores)]
