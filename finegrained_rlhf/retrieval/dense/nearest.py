"""Which rows of a vector store have the largest dot products with queries: FAISS, exactly, or by compressed indexes.

IVF-PQ and FAISS's factory strings compress; an index of a factory string is made, kept in one file, searched. faiss is
imported where it is used.
"""

from __future__ import annotations

import hashlib
import logging
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import atomic_path
from finegrained_rlhf.core.markers import above, at_least, at_most
from finegrained_rlhf.retrieval.dense.vectors import VectorStore
from finegrained_rlhf.runtime.console import ProgressBar

logger = logging.getLogger(__name__)
_CODEBOOK_POINTS = 256 * 256  # that FAISS takes at most for a codebook of eight bits


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


def factory_index(factory: str, dimension: int, passages: int) -> Any:
    """FAISS's empty, untrained index of a factory string, for inner products.

    Args:
        factory: such as `IVF4096,PQ64`, `OPQ64,IVF4096,PQ64np`, `HNSW32`, `SQ8`.
        dimension: of the vectors.
        passages: that it is for.

    Raises:
        ConfigError: FAISS does not know the string, or it fits neither dimension, inner products nor so many passages;
            or faiss is not installed.
    """
    faiss = import_faiss()
    try:
        index = faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise ConfigError(f"factory: {factory!r} makes no index of dimension {dimension} ({_reason(error)})") from None
    if isinstance(index, faiss.IndexIDMap):
        raise ConfigError(f"factory: {factory!r} renumbers the passages, expected it without IDMap")
    if (lists := _lists(index)) > passages:
        raise ConfigError(f"factory: {factory!r} needs at least {lists} passages, the corpus has {passages}")
    return index


def factory_file(directory: Path, factory: str, train: int) -> Path:
    """Where the index of a factory string lies in an index directory; its name says what it was built with."""
    readable = re.sub(r"[^A-Za-z0-9_.]+", "-", factory)[:64]
    return directory / f"factory-{readable}-{hashlib.sha256(factory.encode()).hexdigest()[:8]}-train{train}.faiss"


def build_compressed(store: VectorStore, factory: str, train: int, path: Path, progress: bool) -> None:
    """Learn what the index of a factory string has to learn, add all vectors, and write it atomically.

    Args:
        store: of the vectors.
        factory: as in `factory_index`.
        train: vectors a list that it is learnt from, evenly from the corpus; at least 65,536 in all.
        path: of the file.
        progress: show a bar.

    Raises:
        ConfigError: a string that does not fit, or faiss is not installed.
    """
    index = factory_index(factory, store.dimension, len(store))
    points = min(len(store), max(train * _lists(index), _CODEBOOK_POINTS))
    try:
        if not index.is_trained:
            index.train(store.gather(np.linspace(0, len(store) - 1, points).astype(np.int64)))
        with ProgressBar("adding", len(store), "passages", progress) as bar:
            for _, vectors in store.blocks():
                index.add(vectors)
                bar.update(len(vectors))
    except RuntimeError as error:
        raise ConfigError(f"factory: {factory!r} does not fit {len(store)} passages ({_reason(error)})") from None
    with atomic_path(path) as temporary:
        import_faiss().write_index(index, str(temporary))


class CompressedSearch:
    """Search in the file of a compressed index, whose inverted lists stay on disk; a `Nearest`.

    Args:
        store: of the vectors that it is an index of.
        path: of the file.
        probes: lists that a query looks into, where the index has lists.
        refine: so many times as many candidates are given as are asked for, to be ordered by their exact vectors.

    Raises:
        DataError: the index is missing, damaged or of other vectors.
    """

    exact = False

    def __init__(self, store: VectorStore, path: Path, probes: int, refine: int) -> None:
        faiss = import_faiss()
        if not path.is_file():
            problem = "no such index of the vectors; the same finegrained build-index makes it of those that are there"
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
        if (inverted := faiss.try_extract_index_ivf(self._index)) is not None:
            inverted.nprobe = min(probes, inverted.nlist)
        self._refine = refine

    def candidates(self, queries: NDArray[np.float32], n: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """As `Nearest.candidates`, up to `refine` times as many (R): fp32 [Q, dimension] → products and rows [Q, R]."""
        products, rows = self._index.search(queries, min(n * self._refine, self._index.ntotal))
        return products, rows


def _lists(index: Any) -> int:
    """The number of inverted lists of an index, 1 where it has none."""
    inverted = import_faiss().try_extract_index_ivf(index)
    return 1 if inverted is None else int(inverted.nlist)


def _reason(error: RuntimeError) -> str:
    """What FAISS says, without its source file."""
    return re.sub(r"^Error in .* at \S+:\d+: (Error: )?", "", str(error).strip().split("\n")[0])


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
        goal: share of flat search's best 100 for which a build chooses `probes`, doubled from 1 until passages that are
            asked as queries get it; null keeps `probes`. A search by the record, or with a goal, takes what it chose.
    """

    lists: Annotated[int | None, at_least(1)] = None
    probes: Annotated[int, at_least(1)] = 32
    codes: Annotated[int, at_least(1)] = 64
    bits: Annotated[int, at_least(4), at_most(12)] = 8
    train: Annotated[int, at_least(1)] = 64
    refine: Annotated[int, at_least(1)] = 4
    goal: Annotated[float | None, above(0), at_most(1)] = None

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


def enough_probes(
    store: VectorStore, path: Path, config: IvfPqConfig, queries: NDArray[np.float32], k: int = 100
) -> tuple[int, float]:
    """How many clusters a query must look into.

    Args:
        store: of the vectors.
        path: of their IVF-PQ index.
        config: with a goal.
        queries: fp32 [Q, dimension].
        k: passages a query.

    Returns:
        The first of 1, 2, 4, … probes with which the goal is met, or all clusters, and the share that they find.
    """
    k, lists = min(k, len(store)), config.lists_of(len(store))
    best, probes = FlatSearch(store).candidates(queries, k)[1], 1
    while True:
        found = CompressedSearch(store, path, probes, config.refine).candidates(queries, k)[1]
        share = float(
            np.mean([np.isin(of_best, of_found).mean() for of_best, of_found in zip(best, found, strict=True)])
        )
        if share >= (config.goal or 0.0) or probes >= lists:
            logger.info("%s: %d probes find %.3f of the best %d", path, probes, share, k)
            return probes, share
        probes = min(2 * probes, lists)
