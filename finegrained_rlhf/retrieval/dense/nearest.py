"""Which rows of a vector store have the largest dot products with queries: FAISS, exactly or by IVF-PQ.

faiss is imported where it is used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol

import numpy as np
from numpy.typing import NDArray

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import at_least, at_most
from finegrained_rlhf.retrieval.dense.factory import build_compressed, import_faiss
from finegrained_rlhf.retrieval.dense.vectors import VectorStore

_POINTS_A_LIST = 39  # that k-means asks for, below which FAISS warns


class Nearest(Protocol):
    """Finds rows that are near to queries."""

    exact: bool

    def candidates(self, queries: NDArray[np.float32], n: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """The n rows with the largest dot products.

        Args:
            queries: fp32 [Q, dimension].
            n: rows a query.

        Returns:
            Their products, perhaps approximate, and the rows, each [Q, n]; row −1 where there are no more.
        """
        ...


class FlatSearch:
    """FAISS's exhaustive search, over the memory-mapped shards themselves: no second copy of the vectors."""

    exact = True

    def __init__(self, store: VectorStore) -> None:
        self._store, self._faiss = store, import_faiss()

    def candidates(self, queries: NDArray[np.float32], n: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """As `Nearest.candidates`: fp32 [Q, dimension] → products and rows [Q, n]."""
        heap = self._faiss.ResultHeap(len(queries), n, keep_max=True)
        for first, vectors in self._store.blocks():
            products, rows = self._faiss.knn(
                queries, vectors, min(n, len(vectors)), metric=self._faiss.METRIC_INNER_PRODUCT
            )
            heap.add_result(products, rows + first)
        heap.finalize()
        return heap.D, heap.I


@dataclass(frozen=True)
class IvfPqConfig(Settings):
    """FAISS's inverted file of product-quantised vectors.

    Attributes:
        lists: clusters of the corpus; null: the power of two next to 4√n, but at least 39 passages a list.
        probes: clusters that a query looks into.
        codes: bytes a passage; the dimension must be a multiple of it.
        bits: a code; 8 fits one byte.
        train: passages a list that the clusters are learnt from, taken evenly from the corpus.
        refine: so many times k candidates are scored with their exact vectors, which gives the final order.
    """

    lists: Annotated[int | None, at_least(1)] = None
    probes: Annotated[int, at_least(1)] = 32
    codes: Annotated[int, at_least(1)] = 64
    bits: Annotated[int, at_least(4), at_most(12)] = 8
    train: Annotated[int, at_least(1)] = 64
    refine: Annotated[int, at_least(1)] = 4

    def lists_of(self, passages: int) -> int:
        """The number of clusters of so many passages."""
        if self.lists is not None:
            return self.lists
        power = 2 ** round(math.log2(4 * math.sqrt(passages)))
        return max(1, min(power, passages // _POINTS_A_LIST))

    def factory_of(self, passages: int) -> str:
        """FAISS's string of the index of so many passages.

        Without polysemous training (`np`), which takes ten times as long and only serves searches that filter by it:
        ours find the same either way.
        """
        return f"IVF{self.lists_of(passages)},PQ{self.codes}x{self.bits}np"

    def file(self, directory: Path, passages: int) -> Path:
        """Where the index lies; its name says what it was built with."""
        return directory / f"ivf{self.lists_of(passages)}-pq{self.codes}x{self.bits}-train{self.train}.faiss"

    def check(self, store: VectorStore) -> None:
        """Require enough passages and a dimension that the codes divide.

        Raises:
            ConfigError: naming the setting.
        """
        if store.dimension % self.codes:
            raise ConfigError(f"ivf_pq.codes: the dimension {store.dimension} is no multiple of {self.codes}")
        needed = max(self.lists_of(len(store)), 2**self.bits)
        if len(store) < needed:
            raise ConfigError(f"ivf_pq: needs at least {needed} passages, the corpus has {len(store)}; take index=flat")


def build_ivf_pq(store: VectorStore, config: IvfPqConfig, path: Path, progress: bool) -> None:
    """Learn the clusters and codes, add all vectors, and write the index atomically.

    Raises:
        ConfigError: settings that do not fit the corpus, or faiss is not installed.
    """
    config.check(store)
    build_compressed(store, config.factory_of(len(store)), config.train, path, progress)
