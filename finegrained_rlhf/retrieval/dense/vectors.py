"""The vectors of a corpus on disk, in shards: encoded once, then read from memory-mapped files.

A shard is one file with the vectors of consecutive passages, their ids, and the place in the corpus after them; it is
there as a whole or not at all. What was encoded before a run was killed is not encoded again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.retrieval.arrays import StringTable, open_arrays, save_arrays, string_arrays
from finegrained_rlhf.retrieval.corpus import Corpus, Place
from finegrained_rlhf.retrieval.dense.config import TextEncoder
from finegrained_rlhf.runtime.console import ProgressBar

PieceEncoder = Callable[[Sequence[Sequence[tuple[str, ...]]]], Iterable[NDArray[np.float32]]]
"""Vectors [n, dimension] of each of several pieces of n passages, in their order; passages by what is read of them."""
_PIECE = 32  # batches between two steps of the progress bar


def _shard(directory: Path, number: int) -> Path:
    return directory / f"vectors-{number:05d}.safetensors"


def encode_corpus(
    corpus: Corpus,
    encoder: TextEncoder,
    directory: Path,
    *,
    passages: int,
    shard_size: int,
    dtype: str,
    progress: bool,
    encode_pieces: PieceEncoder | None = None,
) -> int:
    """Write the shards of a corpus that are not there yet.

    Args:
        corpus: to encode.
        encoder: of passages.
        directory: of the index.
        passages: in the corpus.
        shard_size: passages a shard.
        dtype: of the stored vectors, `float32` or `float16`.
        progress: show a bar.
        encode_pieces: encodes in place of the encoder, as it would itself; such as several processes of it.

    Returns:
        The number of shards.

    Raises:
        DataError: a broken corpus or shard.
        ModelError: the encoder fails.
    """
    encode_pieces = encode_pieces or partial(map, encoder.encode_parts)
    number, done, after = 0, 0, Place()
    while _shard(directory, number).is_file():
        arrays = open_arrays(_shard(directory, number))
        done += len(arrays["vectors"])
        after = Place(*arrays["after"].tolist())
        number += 1
    with ProgressBar("encoding", passages, "passages", progress, done=done) as bar:
        for block, place in corpus.blocks(shard_size, after):
            vectors = _encode(block, encoder, encode_pieces, dtype, bar)
            save_shard(directory, number, vectors, [passage.id for passage in block], place)
            number += 1
    return number


def save_shard(directory: Path, number: int, vectors: NDArray[Any], ids: Sequence[str], after: Place) -> None:
    """Write one shard, as a whole or not at all.

    Args:
        directory: of the index.
        number: of the shard, from 0.
        vectors: float32 or float16 [n, dimension].
        ids: n ids of passages.
        after: the place in the corpus after them, where encoding goes on.
    """
    assert vectors.ndim == 2 and len(vectors) == len(ids), "expected vectors [n, dimension] and n ids"
    place = np.array(astuple(after), dtype=np.int64)
    save_arrays(_shard(directory, number), {"vectors": vectors, "after": place, **string_arrays(ids)})


def _encode(
    block: Sequence[Passage], encoder: TextEncoder, encode_pieces: PieceEncoder, dtype: str, bar: Any
) -> NDArray[Any]:
    """The vectors of passages, [n, dimension]; texts of similar length are encoded together, equal ones once.

    A vector's last bits may depend on the batch that it is computed in; equal passages of a block still tie exactly.
    """
    rows: dict[tuple[str, ...], list[int]] = {}
    for row, passage in enumerate(block):
        rows.setdefault(encoder.parts(passage), []).append(row)
    texts = list(rows)
    order = sorted(range(len(texts)), key=lambda i: sum(map(len, texts[i])), reverse=True)
    vectors = np.empty((len(block), encoder.dimension), dtype=dtype)
    size = _PIECE * encoder.batch_size
    pieces = [order[start : start + size] for start in range(0, len(order), size)]
    encoded = encode_pieces([[texts[i] for i in piece] for piece in pieces])
    for piece, of_piece in zip(pieces, encoded, strict=True):
        for i, vector in zip(piece, of_piece, strict=True):
            vectors[rows[texts[i]]] = vector
            bar.update(len(rows[texts[i]]))
    return vectors


class VectorStore:
    """The vectors of a corpus; row r belongs to its r-th passage.

    Args:
        directory: of the index.
        shards: their number.
        dimension: that the vectors must have.

    Raises:
        DataError: a shard is missing, damaged or of another dimension.
    """

    def __init__(self, directory: Path, shards: int, dimension: int) -> None:
        self.dimension = dimension
        self._vectors: list[NDArray[Any]] = []
        self._ids: list[StringTable] = []
        for number in range(shards):
            path = _shard(directory, number)
            arrays = open_arrays(path)
            vectors = arrays["vectors"]
            if vectors.ndim != 2 or vectors.shape[1] != dimension:
                raise DataError(f"holds vectors of shape {list(vectors.shape)}, expected [n, {dimension}]", file=path)
            self._vectors.append(vectors)
            self._ids.append(StringTable(arrays))
        self._starts = np.cumsum([0, *map(len, self._vectors)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def rows(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """int64 [n], the row of each passage.

        Raises:
            DataError: a passage is not in the corpus.
        """
        rows = self.find(ids)
        if (rows < 0).any():
            missing = ids[int(np.flatnonzero(rows < 0)[0])]
            raise DataError(f"no passage with the id {missing!r} ({int((rows < 0).sum())} missing)")
        return rows

    def find(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """int64 [n], the row of each passage, −1 where the corpus does not have it."""
        rows = np.full(len(ids), -1, dtype=np.int64)
        for start, table in zip(self._starts, self._ids, strict=False):
            left = np.flatnonzero(rows < 0)
            if not len(left):
                break
            places = table.find([ids[i] for i in left.tolist()])
            rows[left] = np.where(places < 0, -1, start + places)
        return rows

    def id(self, row: int) -> str:
        """The id of the passage of a row."""
        shard = int(np.searchsorted(self._starts, row, side="right")) - 1
        return self._ids[shard][row - int(self._starts[shard])]

    def gather(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """fp32 [n, dimension], the vectors of rows."""
        gathered = np.empty((len(rows), self.dimension), dtype=np.float32)
        shards = np.searchsorted(self._starts, rows, side="right") - 1
        for shard in np.unique(shards):
            chosen = np.flatnonzero(shards == shard)
            gathered[chosen] = self._vectors[shard][rows[chosen] - self._starts[shard]]
        return gathered

    def blocks(self, size: int = 65_536) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """All vectors in order, at most `size` at a time: the first row and fp32 [n, dimension]."""
        for start, vectors in zip(self._starts.tolist(), self._vectors, strict=False):
            for first in range(0, len(vectors), size):
                yield start + first, np.ascontiguousarray(vectors[first : first + size], dtype=np.float32)
