"""What a retriever is: search in a corpus, and scores of given passages.

Training with a retrieval reward needs `score_pool` only, so that any black box that scores a query against a passage
can serve it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
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

    def missing(self, ids: Sequence[str]) -> list[str]:
        """Those of some ids that no passage of the corpus has, in their order; repeats may be left out."""
        ...

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """The best passages for each query.

        Args:
            queries: texts.
            k: hits a query, at least 1; fewer come back where the corpus is smaller or nothing else matches.

        Returns:
            For each query its hits, best first; equal scores are ordered by id, descending, as trec_eval breaks ties.
        """
        ...


class RetrieverConfig(Protocol):
    """The settings of a retriever, as YAML names them (`conf/retriever/`): they build its index and open it."""

    def build(self, corpus: str, directory: Path) -> None:
        """Index a corpus; goes on where an earlier call with the same corpus and settings was stopped.

        Args:
            corpus: file or directory that `corpus.Corpus` reads.
            directory: where the index goes; made where it is absent.

        Raises:
            DataError: a broken or empty corpus.
            ConfigError: the directory holds an index of another corpus or with other settings.
        """
        ...

    def open(self, directory: Path) -> Retriever:
        """The retriever over an index that was built with these settings.

        Raises:
            DataError: there is no index, or it is not finished.
            ConfigError: it was built with other settings.
        """
        ...
