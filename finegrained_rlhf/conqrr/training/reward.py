"""What a rewrite is worth: where a retriever ranks the right passage among those of the batch, or a reward of your own.

A configuration names a reward by `_target_` (`conf/rewrite_reward/`): a `RewriteRewardConfig`, whose `build` makes the
reward of a run. Knows passage labels and a scorer of given passages. Does not know how rewrites are made.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from finegrained_rlhf.conqrr.records import PassageLabel, RewriteExample
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.retrieval.protocol import PoolScorer
from finegrained_rlhf.training.self_critical.config import ResponseReward

Shape = Literal["first", "reciprocal_rank"]


@dataclass(frozen=True)
class RewardInputs:
    """What a reward may be made from.

    Attributes:
        examples: the questions to train on and to select by, by id.
        labels: passage labels by question id; empty without a file of labels.
        scorer: the index; None without one.
    """

    examples: Mapping[str, RewriteExample]
    labels: Mapping[str, PassageLabel]
    scorer: PoolScorer | None


class RewriteReward(ResponseReward, Protocol):
    """What rewrites are worth: `score`, of the trainer's `ResponseReward`, and which questions it can score.

    The ids of the prompts that `score` is given are those of their questions.

    Attributes:
        rewarded: ids of the questions whose rewrites can be scored.
    """

    rewarded: Collection[str]


class RewriteRewardConfig(Protocol):
    """The settings of a reward, as YAML names them.

    Attributes:
        needs_labels: it cannot be built without passage labels and an index.
    """

    needs_labels: ClassVar[bool]

    def build(self, inputs: RewardInputs) -> RewriteReward:
        """The reward of a run.

        Raises:
            ConfigError: the settings need something that the run does not have.
        """
        ...


@dataclass(frozen=True)
class PassageRank:
    """Rewards by the rank of the labelled passage in the step's pool (`PoolReward`).

    Attributes:
        shape: `first`: 1 where it is first, else 0 (thesis, eq. 4.2); `reciprocal_rank`: 1 / rank.
    """

    needs_labels: ClassVar[bool] = True

    shape: Shape = "first"

    def __post_init__(self) -> None:
        if self.shape not in get_args(Shape):
            raise ConfigError(f"rewrite_reward.shape: expected first or reciprocal_rank, got {self.shape!r}")

    def build(self, inputs: RewardInputs) -> PoolReward:
        """See `RewriteRewardConfig`.

        Raises:
            ConfigError: there is no index.
        """
        if inputs.scorer is None:
            raise ConfigError("rewrite_reward: the rank of a passage needs labels=FILE and index=DIR")
        return PoolReward(inputs.scorer, inputs.labels, self.shape)


def pool_ids(labels: Sequence[PassageLabel]) -> list[str]:
    """The passages of a batch: every positive and every negative once, in order of first occurrence."""
    return list(dict.fromkeys(passage for label in labels for passage in (label.positive, label.negative)))


def ranked_first(scores: NDArray[np.float32], positives: Sequence[int]) -> NDArray[np.bool_]:
    """Whether the positive scores strictly higher than every other passage of the pool (thesis, eq. 4.2).

    Args:
        scores: fp32 [Q, P].
        positives: Q columns.

    Returns:
        bool [Q]. A tie is a loss, so that a query that says nothing, or a retriever that knows nothing, earns nothing.
    """
    rows = np.arange(len(positives))
    own = scores[rows, list(positives)]
    others = scores.copy()
    others[rows, list(positives)] = -np.inf
    return np.asarray((others < own[:, None]).all(axis=1))


def reciprocal_ranks(scores: NDArray[np.float32], positives: Sequence[int]) -> NDArray[np.float64]:
    """1 / rank of the positive in the pool, ties counted against it.

    Args:
        scores: fp32 [Q, P].
        positives: Q columns.

    Returns:
        fp64 [Q], 1 / P to 1.
    """
    own = scores[np.arange(len(positives)), list(positives)]
    return np.asarray(1.0 / (scores >= own[:, None]).sum(axis=1))


class PoolReward:
    """score(q) is 1 where the retriever ranks the positive above every other passage of the step's pool, else 0.

    Or 1 / the positive's rank. Satisfies `RewriteReward`. The pool holds the positives and negatives of all rewarded
    questions of the step, so every process scores against the same one; all of a step's rewrites go to `score_pool` in
    one call, equal ones once.

    Args:
        scorer: scores queries against passages.
        labels: by question id.
        shape: `first` or `reciprocal_rank`.
    """

    def __init__(self, scorer: PoolScorer, labels: Mapping[str, PassageLabel], shape: Shape = "first") -> None:
        self.scorer, self.labels, self.shape = scorer, labels, shape
        self.rewarded: Collection[str] = labels.keys()

    def score(self, step_prompts: Sequence[Prompt], prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
        """See `ResponseReward.score`.

        Raises:
            DataError: a question has no label, or a label names a passage that the corpus does not have.
        """
        pool = pool_ids([self._label(prompt) for prompt in step_prompts])
        column = {passage: number for number, passage in enumerate(pool)}
        queries = list(dict.fromkeys(texts))
        row = {query: number for number, query in enumerate(queries)}
        table = self.scorer.score_pool(queries, pool)[[row[text] for text in texts]]
        positives = [column[self._label(prompt).positive] for prompt in prompts]
        values = ranked_first(table, positives) if self.shape == "first" else reciprocal_ranks(table, positives)
        return [float(value) for value in values]

    def _label(self, prompt: Prompt) -> PassageLabel:
        if prompt.id not in self.labels:
            raise DataError("expected a passage label", record=prompt.id, field="positive")
        return self.labels[prompt.id]


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
