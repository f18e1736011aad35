"""Compressed indexes of vectors by FAISS's factory strings: made, kept in one file, searched.

faiss is imported where it is used.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import atomic_path
from finegrained_rlhf.retrieval.dense.vectors import VectorStore
from finegrained_rlhf.runtime.console import ProgressBar

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
