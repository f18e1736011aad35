"""What a rewrite is worth in training: rewards by the rank of a question's labelled passage, and a guard around any.

A configuration names a reward by `_target_` (`conf/rewrite_reward/`): a `RewriteRewardConfig`, whose `build` makes the
reward of a run. Ranks are taken in the step's pool (CONQRR's own), or in an index; as a control scores are dealt out at
random. A retriever does not mind a phrase that is repeated to the limit of tokens: in the guard repetition and length
cost something.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from finegrained_rlhf.conqrr.data import PassageLabel, RewriteExample
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import at_least
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.metrics.functions import repeated_bigram_share, words_with_letters
from finegrained_rlhf.retrieval.protocol import Hit, PoolScorer, Retriever
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


RankShape = Literal["first", "reciprocal_rank", "ndcg"]


def pool_ranks(scores: NDArray[np.float32], positives: Sequence[int]) -> NDArray[np.float64]:
    """The rank of the right passage in a pool: one more than the passages that it does not strictly exceed.

    A tie counts against it, so that a query that says nothing, or a retriever that knows nothing, ranks it last.

    Args:
        scores: fp32 [Q, P] of P passages for Q queries.
        positives: Q columns, the right passage of each query.

    Returns:
        fp64 [Q], 1 to P.
    """
    own = scores[np.arange(len(positives)), list(positives)]
    below = (scores < own[:, None]).sum(axis=1)
    return np.asarray(scores.shape[1] - below, dtype=np.float64)


def rank_values(ranks: NDArray[np.float64], shape: RankShape) -> NDArray[np.float64]:
    """What ranks are worth, from 0 to 1.

    `first`: 1 at rank 1, else 0 (thesis, eq. 4.2). `reciprocal_rank`: 1 / rank, whose mean is MRR. `ndcg`:
    1 / log2(1 + rank), the nDCG of a question with one relevant passage (Järvelin and Kekäläinen, 2002).

    Args:
        ranks: fp64 [Q], from 1; infinite where the passage was not found, which is worth 0.
        shape: one of the three.

    Returns:
        fp64 [Q].

    Raises:
        ValueError: a rank below 1, or no such shape.
    """
    if ranks.size and not bool((ranks >= 1).all()):
        raise ValueError("ranks begin with 1")
    if shape == "first":
        return (ranks == 1).astype(np.float64)
    if shape == "reciprocal_rank":
        return np.asarray(1.0 / ranks)
    if shape == "ndcg":
        return np.asarray(1.0 / np.log2(1.0 + ranks))
    raise ValueError(f"shape must be first, reciprocal_rank or ndcg, got {shape!r}")


def _check_shape(shape: str) -> None:
    if shape not in get_args(RankShape):
        raise ConfigError(f"rewrite_reward.shape: expected {', '.join(get_args(RankShape))}, got {shape!r}")


def _retriever(inputs: RewardInputs) -> Retriever:
    if inputs.retriever is None:
        raise ConfigError("rewrite_reward: the rank of a passage needs labels=FILE and index=DIR")
    return inputs.retriever


@dataclass(frozen=True)
class PassageRank(Settings):
    """Rewards by the rank of the labelled passage in the step's pool (`PoolReward`).

    Attributes:
        shape: what a rank is worth: `first` (thesis, eq. 4.2), `reciprocal_rank` or `ndcg` (`rank_values`).
    """

    needs_labels: ClassVar[bool] = True

    shape: RankShape = "first"

    def __post_init__(self) -> None:
        _check_shape(self.shape)

    def build(self, inputs: RewardInputs) -> PoolReward:
        """See `RewriteRewardConfig`.

        Raises:
            ConfigError: there is no index.
        """
        return PoolReward(_retriever(inputs), inputs.labels, self.shape)


@dataclass(frozen=True)
class RetrievedRank(Settings):
    """Rewards by the rank of the labelled passage among what a search of the whole index finds (`SearchReward`).

    Attributes:
        shape: what a rank is worth: `first`, `reciprocal_rank` or `ndcg` (`rank_values`); 0 where it is not found.
        depth: passages that a search finds.
    """

    needs_labels: ClassVar[bool] = True

    shape: RankShape = "reciprocal_rank"
    depth: Annotated[int, at_least(1)] = 100

    def __post_init__(self) -> None:
        _check_shape(self.shape)

    def build(self, inputs: RewardInputs) -> SearchReward:
        """See `RewriteRewardConfig`.

        Raises:
            ConfigError: there is no index.
        """
        return SearchReward(_retriever(inputs), inputs.labels, self.shape, self.depth)


def pool_ids(labels: Sequence[PassageLabel]) -> list[str]:
    """The passages of a batch: every positive and every negative once, in order of first occurrence."""
    return list(dict.fromkeys(passage for label in labels for passage in (label.positive, label.negative)))


class PoolReward:
    """score(q) is what the rank of the question's positive among the passages of the step's pool is worth.

    Satisfies `RewriteReward`. The pool holds the positives and negatives of all rewarded questions of the step, so
    every process scores against the same one; all of a step's rewrites go to `score_pool` in one call, equal ones once.

    Args:
        scorer: scores queries against passages.
        labels: by question id.
        shape: what a rank is worth; `first` is the thesis's.
    """

    def __init__(self, scorer: PoolScorer, labels: Mapping[str, PassageLabel], shape: RankShape = "first") -> None:
        self.scorer, self.labels, self.shape = scorer, labels, shape
        self.rewarded: Collection[str] = labels.keys()

    def score(self, step_prompts: Sequence[Prompt], prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
        """See `ResponseReward.score`.

        Raises:
            DataError: a question has no label, or a label names a passage that the corpus does not have.
        """
        pool = pool_ids([label_of(self.labels, prompt) for prompt in step_prompts])
        column = {passage: number for number, passage in enumerate(pool)}
        queries = list(dict.fromkeys(texts))
        row = {query: number for number, query in enumerate(queries)}
        table = self.scorer.score_pool(queries, pool)[[row[text] for text in texts]]
        positives = [column[label_of(self.labels, prompt).positive] for prompt in prompts]
        return rank_values(pool_ranks(table, positives), self.shape).tolist()


class SearchReward:
    """score(q) is what the rank of the question's positive is worth among the passages that a search with q finds.

    Satisfies `RewriteReward`. Passages of the same score count against the positive; equal rewrites are searched once.

    Args:
        retriever: searches the corpus.
        labels: by question id.
        shape: what a rank is worth; 0 where the positive is not found.
        depth: passages that a search finds.
    """

    def __init__(self, retriever: Retriever, labels: Mapping[str, PassageLabel], shape: RankShape, depth: int) -> None:
        self.retriever, self.labels, self.shape, self.depth = retriever, labels, shape, depth
        self.rewarded: Collection[str] = labels.keys()

    def score(self, step_prompts: Sequence[Prompt], prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
        """See `ResponseReward.score`; a blank rewrite finds nothing.

        Raises:
            DataError: a question has no label.
        """
        queries = list(dict.fromkeys(text for text in texts if text.strip()))
        hits = dict(zip(queries, self.retriever.search(queries, self.depth) if queries else [], strict=True))
        positives = [label_of(self.labels, prompt).positive for prompt in prompts]
        ranks = [hit_rank(hits.get(text, ()), one) for text, one in zip(texts, positives, strict=True)]
        return rank_values(np.array(ranks, dtype=np.float64), self.shape).tolist()


def hit_rank(hits: Sequence[Hit], positive: str) -> float:
    """The rank of a passage among hits, ties counted against it; infinite where it is not among them."""
    own = next((hit.score for hit in hits if hit.id == positive), None)
    return float("inf") if own is None else float(sum(hit.score >= own for hit in hits))


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
