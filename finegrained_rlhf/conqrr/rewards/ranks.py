"""Ranks of passages and what they are worth, as pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

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
