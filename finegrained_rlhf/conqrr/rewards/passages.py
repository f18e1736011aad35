"""Rewards by the rank of a question's labelled passage: in the step's pool (CONQRR's own), or in an index."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from finegrained_rlhf.conqrr.records import PassageLabel
from finegrained_rlhf.conqrr.rewards.base import RewardInputs, label_of
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import at_least
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.retrieval.protocol import Hit, PoolScorer, Retriever

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
