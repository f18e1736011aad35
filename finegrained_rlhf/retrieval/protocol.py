"""What a retriever is: search in a corpus, and scores of given passages.

Knows neither corpora nor indexes. Training with a retrieval reward needs `score_pool` only, so that any black box that
scores a query against a passage can serve it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Hit:
    """A passage that was found.

    Attributes:
        id: of the passage.
        score: its relevance; higher is better. Only scores for one query can be compared.
    """

    id: str
    score: float


class PoolScorer(Protocol):
    """Scores queries against given passages."""

    def score_pool(self, queries: Sequence[str], ids: Sequence[str]) -> NDArray[np.float32]:
        """Relevance of every passage of a pool to every query.

        A score depends on the query and the passage alone: not on the order or the repetition of ids.

        Args:
            queries: Q texts.
            ids: P ids of passages, any order, repeats allowed.

        Returns:
            fp32 [Q, P].

        Raises:
            DataError: an id is not in the corpus.
        """
        ...


class Retriever(PoolScorer, Protocol):
    """Searches a corpus."""

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """The best passages for each query.

        Args:
            queries: texts.
            k: hits a query, at least 1; fewer come back where the corpus is smaller or nothing else matches.

        Returns:
            For each query its hits, best first; equal scores are ordered by id, descending, as trec_eval breaks ties.
        """
        ...
