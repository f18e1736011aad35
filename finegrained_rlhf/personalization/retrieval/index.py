"""A user's notes by nearness to a context: read from the store each time, or kept in a FAISS index per user.

Whose notes are compared is settled before anything is.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.personalization.retrieval.nearest import EncoderError, nearest_notes, to_bytes, vectors_of
from finegrained_rlhf.personalization.store.protocol import UserHandle
from finegrained_rlhf.personalization.store.records import Note
from finegrained_rlhf.retrieval.dense.factory import import_faiss

if TYPE_CHECKING:  # encoders load torch
    from finegrained_rlhf.personalization.retrieval.encoders import ContextEncoder

_FEW = 64  # changed notes that are read one by one; of more, all are
_ROUNDING = 2e-6  # `nearest_rows` compares products to six decimals


class NoteIndex(Protocol):
    """Finds a user's notes by the contexts that their vectors stand for."""

    def nearest(
        self, handle: UserHandle, encoder: ContextEncoder, context: str, k: int, least: float = -math.inf
    ) -> list[Note]:
        """The user's k notes nearest to a context, the best first and of equals the latest, as they are stored now.

        Args:
            handle: of the user.
            encoder: of the context, and of all notes' vectors.
            context: a text.
            k: how many; all where there are fewer.
            least: the lowest similarity, a cosine from −1 to 1.

        Raises:
            EncoderError: a note's vector was made by another encoder.
        """
        ...

    def drop(self, handle: UserHandle) -> None:
        """Keep nothing more of a user."""
        ...


def nearest_encoded(
    index: NoteIndex,
    handle: UserHandle,
    encoder: ContextEncoder,
    context: str,
    k: int,
    texts: Callable[[UserHandle, Sequence[Note]], list[str]],
    least: float = -math.inf,
) -> list[Note]:
    """As `NoteIndex.nearest`; where another encoder made vectors of the user's, they are made anew and stored.

    Each note's body says in `encoder` what made its vector.

    Args:
        index: that finds notes.
        handle: of the user.
        encoder: of the context.
        context: a text.
        k: how many; all where there are fewer.
        texts: what the vectors of notes are made of.
        least: the lowest similarity, a cosine from −1 to 1.

    Raises:
        MemoryLimitError: the new vectors are larger than the memory takes.
    """
    try:
        return index.nearest(handle, encoder, context, k, least)
    except EncoderError:
        notes = handle.notes()
        old = [note for note in notes if note.vector is not None and note.body.get("encoder") != encoder.identity]
        made = {
            note.key: replace(note, body={**note.body, "encoder": encoder.identity}, vector=to_bytes(vector))
            for note, vector in zip(old, encoder.encode(texts(handle, old)), strict=True)
        }
        handle.replace_vectors(list(made.values()))
        return nearest_notes([made.get(note.key, note) for note in notes], encoder, context, k, least)


class ExactIndex:
    """Reads the user's notes from the store and compares all of them. It keeps nothing."""

    def nearest(
        self, handle: UserHandle, encoder: ContextEncoder, context: str, k: int, least: float = -math.inf
    ) -> list[Note]:
        """As `NoteIndex.nearest` says."""
        return nearest_notes(handle.notes(), encoder, context, k, least)

    def drop(self, handle: UserHandle) -> None:
        """Nothing is kept."""


class FaissIndex:
    """Keeps the vectors of the users asked for last in this process, in a flat FAISS index each: exact inner products.

    Before each search the store says which version each note has, and notes of other versions are read again. What is
    found is the same as `ExactIndex` finds, ties too. Other processes that keep an index drop a user who was forgotten
    when others take the place, or at their end; what they keep is never given to anybody.

    Args:
        users: how many are kept.

    Raises:
        ConfigError: fewer than one, or faiss is not installed.
    """

    def __init__(self, users: int = 64) -> None:
        if users < 1:
            raise ConfigError(f"users: expected at least 1, got {users}")
        self._users, self._faiss = users, import_faiss()
        self._kept: OrderedDict[tuple[str, str], _UserVectors] = OrderedDict()  # by handle and encoder
        self._lock = threading.Lock()

    def nearest(
        self, handle: UserHandle, encoder: ContextEncoder, context: str, k: int, least: float = -math.inf
    ) -> list[Note]:
        """As `NoteIndex.nearest` says."""
        if not handle.number:
            return []  # nobody's: there is nothing to be kept
        query = encoder.encode([context])
        with self._lock:
            place = (handle.identity, encoder.identity)
            own = self._kept.setdefault(place, _UserVectors(self._faiss, query.shape[1]))
            self._kept.move_to_end(place)
            while len(self._kept) > self._users:
                self._kept.popitem(last=False)
            own.update(handle, encoder)
            keys = own.candidates(query, k)
        notes = [note for note in map(handle.note, keys) if note is not None]
        return nearest_notes(sorted(notes, key=lambda note: (note.event, note.key)), encoder, context, k, least)

    def drop(self, handle: UserHandle) -> None:
        """Keep nothing more of a user."""
        with self._lock:
            for place in [one for one in self._kept if one[0] == handle.identity]:
                del self._kept[place]


class _UserVectors:
    """The vectors of one user's notes, by a number that each note gets."""

    def __init__(self, faiss: Any, dimension: int) -> None:
        self._index = faiss.IndexIDMap2(faiss.IndexFlatIP(dimension))
        self._versions: dict[str, int] = {}
        self._numbers: dict[str, int] = {}
        self._keys: list[str] = []

    def update(self, handle: UserHandle, encoder: ContextEncoder) -> None:
        """Read again what has changed in the store."""
        now = handle.versions()
        changed = [key for key, version in now.items() if self._versions.get(key) != version]
        if gone := [key for key in self._versions if key not in now]:
            self._remove(gone)
        if not changed:
            return
        notes: Iterable[Note | None] = handle.notes() if len(changed) > _FEW else map(handle.note, changed)
        wanted = set(changed)
        read = [note for note in notes if note is not None and note.key in wanted]
        kept, rows = vectors_of(read, encoder)
        self._remove([note.key for note in read if note.key in self._versions])
        for note in kept:
            self._numbers[note.key] = len(self._keys)
            self._keys.append(note.key)
        if kept:
            self._index.add_with_ids(rows, np.array([self._numbers[note.key] for note in kept], np.int64))
        self._versions |= {note.key: note.version for note in read}

    def candidates(self, query: np.ndarray, k: int) -> list[str]:
        """Keys of the k nearest notes, and of all that are as near as the last of them.

        Args:
            query: fp32 [1, D].
            k: how many.
        """
        if not self._index.ntotal:
            return []
        products, _ = self._index.search(query, min(k, self._index.ntotal))
        _, _, numbers = self._index.range_search(query, float(products[0, -1]) - _ROUNDING)
        return [self._keys[number] for number in numbers]

    def _remove(self, keys: list[str]) -> None:
        numbers = [self._numbers.pop(key) for key in keys if key in self._numbers]
        if numbers:
            self._index.remove_ids(np.array(numbers, np.int64))
        for key in keys:
            del self._versions[key]
