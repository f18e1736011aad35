"""Which rows of a vector store have the largest dot products with queries: FAISS, exactly or by IVF-PQ.

Knows vectors and rows. Does not know texts or ids. faiss is imported where it is used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import atomic_path
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
class IvfPqConfig:
    """FAISS's inverted file of product-quantised vectors.

    Attributes:
        lists: clusters of the corpus; null: the power of two next to 4√n, but at least 39 passages a list.
        probes: clusters that a query looks into.
        codes: bytes a passage; the dimension must be a multiple of it.
        bits: a code; 8 fits one byte.
        train: passages a list that the clusters are learnt from, taken evenly from the corpus.
        refine: so many times k candidates are scored with their exact vectors, which gives the final order.
    """

    lists: int | None = None
    probes: int = 32
    codes: int = 64
    bits: int = 8
    train: int = 64
    refine: int = 4

    def __post_init__(self) -> None:
        for name in ("lists", "probes", "codes", "train", "refine"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"ivf_pq.{name}: expected at least 1, got {value}")
        if not 4 <= self.bits <= 12:
            raise ConfigError(f"ivf_pq.bits: expected 4 to 12, got {self.bits}")

    def lists_of(self, passages: int) -> int:
        """The number of clusters of so many passages."""
        if self.lists is not None:
            return self.lists
        power = 2 ** round(math.log2(4 * math.sqrt(passages)))
        return max(1, min(power, passages // _POINTS_A_LIST))

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
    faiss = import_faiss()
    lists = config.lists_of(len(store))
    # np: without polysemous training, which only serves searches that filter by it: ours find the same either way
    index = faiss.index_factory(
        store.dimension, f"IVF{lists},PQ{config.codes}x{config.bits}np", faiss.METRIC_INNER_PRODUCT
    )
    points = min(len(store), max(config.train * lists, 256 * 2**config.bits))
    index.train(store.gather(np.linspace(0, len(store) - 1, points).astype(np.int64)))
    with tqdm(total=len(store), desc="adding", unit="passage", disable=not progress) as bar:
        for _, vectors in store.blocks():
            index.add(vectors)
            bar.update(len(vectors))
    with atomic_path(path) as temporary:
        faiss.write_index(index, str(temporary))


class IvfPqSearch:
    """Search in an IVF-PQ index, whose codes stay on disk.

    Raises:
        DataError: the index is missing, damaged or of other vectors.
    """

    exact = False

    def __init__(self, store: VectorStore, config: IvfPqConfig, path: Path) -> None:
        faiss = import_faiss()
        if not path.is_file():
            problem = "no such IVF-PQ index; the same build_index.py command makes it from the vectors that are there"
            raise DataError(problem, file=path)
        try:
            self._index: Any = faiss.read_index(str(path), faiss.IO_FLAG_MMAP)
        except RuntimeError as error:
            reason = str(error).strip().split("\n")[0]
            raise DataError(f"damaged ({reason}); delete it and build it again", file=path) from None
        if self._index.d != store.dimension or self._index.ntotal != len(store):
            raise DataError(
                f"holds {self._index.ntotal} vectors of dimension {self._index.d}, expected {len(store)} of "
                f"{store.dimension}",
                file=path,
            )
        self._index.nprobe = min(config.probes, self._index.nlist)
        self._refine = config.refine

    def candidates(self, queries: NDArray[np.float32], n: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """As `Nearest.candidates`, up to `refine` times as many (R): fp32 [Q, dimension] → products and rows [Q, R]."""
        products, rows = self._index.search(queries, min(n * self._refine, self._index.ntotal))
        return products, rows


def import_faiss() -> Any:
    """The module faiss.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import faiss
    except ImportError:
        raise ConfigError("dense search needs faiss: pip install -e '.[retrieval]' in a checkout") from None
    return faiss
