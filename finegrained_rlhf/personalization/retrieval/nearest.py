"""The notes of one user whose contexts are nearest to a context: exact, by cosine.

The store gives one user's notes alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.personalization.store.records import Note

if TYPE_CHECKING:  # encoders load torch
    from finegrained_rlhf.personalization.retrieval.encoders import ContextEncoder


class EncoderError(DataError):
    """A note's vector was made by another encoder than the one in use."""


def to_bytes(vector: NDArray[np.float32]) -> bytes:
    """A vector [D] as the store keeps it: fp32, little-endian."""
    return vector.astype("<f4").tobytes()


def nearest_rows(query: NDArray[np.float32], rows: NDArray[np.float32], k: int) -> list[int]:
    """The k rows with the highest inner product, the best first; of equals, to six decimals, the latest.

    Products are taken in fp64, so that equals are the same rows whichever others are beside them.

    Args:
        query: [D].
        rows: [N, D]; with lengths of 1 the product is the cosine.
        k: how many; all where there are fewer.

    Raises:
        ValueError: shapes that do not fit.
    """
    if query.ndim != 1 or rows.ndim != 2 or rows.shape[1] != query.shape[0]:
        raise ValueError(f"expected [D] and [N, D], got {query.shape} and {rows.shape}")
    products = rows.astype(np.float64) @ query.astype(np.float64)
    order = np.lexsort((-np.arange(len(rows)), -products.round(6)))
    return [int(i) for i in order[:k]]


def nearest_notes(
    notes: Sequence[Note], encoder: ContextEncoder, context: str, k: int, least: float = -math.inf
) -> list[Note]:
    """The k notes nearest to a context, the best first; those without a vector are left out.

    Args:
        notes: of one user, each body with `encoder`, the identity of what made its vector.
        encoder: of the context.
        context: a text.
        k: how many; all where there are fewer.
        least: the lowest similarity, a cosine from −1 to 1; notes that are further away are left out.

    Raises:
        EncoderError: a note's vector was made by another encoder.
    """
    kept, rows = vectors_of(notes, encoder)
    if not kept:
        return []
    query = encoder.encode([context])[0]
    return [kept[i] for i in nearest_rows(query, rows, k) if rows[i].astype(float) @ query.astype(float) >= least]


def vectors_of(notes: Sequence[Note], encoder: ContextEncoder) -> tuple[list[Note], NDArray[np.float32]]:
    """The notes that have a vector, and these, fp32 [N, D].

    Raises:
        EncoderError: a note's vector was made by another encoder.
    """
    kept = [note for note in notes if note.vector is not None]
    for note in kept:
        if note.body.get("encoder") != encoder.identity:
            raise EncoderError(
                "its vector was made by another encoder than the one in use", record=note.key, field="encoder"
            )
    rows = [np.frombuffer(note.vector or b"", "<f4") for note in kept]
    return kept, np.stack(rows) if rows else np.zeros((0, 0), np.float32)
