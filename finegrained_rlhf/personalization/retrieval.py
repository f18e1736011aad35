"""A user's notes by nearness to a context: contexts as vectors, exact search by cosine, or a FAISS index per user.

Vectors are of hashed words, which need nothing, of a sentence encoder, or of an endpoint. Notes are read from the store
each time, or kept in the index. Whose notes are compared is settled before anything is: the store gives those of one
user alone.
"""

from __future__ import annotations

import json
import math
import threading
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.generation.outcomes import ReplyError
from finegrained_rlhf.core.generation.protocol import words_and_marks
from finegrained_rlhf.core.markers import at_least, harmless
from finegrained_rlhf.personalization.store.protocol import Note, UserHandle
from finegrained_rlhf.retrieval.dense.config import EncoderConfig
from finegrained_rlhf.retrieval.dense.nearest import import_faiss
from finegrained_rlhf.runtime.remote.answers import UnintelligibleAnswer
from finegrained_rlhf.runtime.remote.client import Call, RemoteClient, RemoteConfig, RemoteError

if TYPE_CHECKING:
    from finegrained_rlhf.retrieval.dense.config import TextEncoder


Names = tuple[str, ...]
_ANY = -math.inf


class ContextEncoder(Protocol):
    """The representation φ of contexts (Gao et al. 2024, algorithm 1)."""

    @property
    def identity(self) -> str:
        """All that vectors depend on; vectors of two identities are never compared."""
        ...

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of N texts, fp32 [N, D], each of length 1 or, for a text without content, 0."""
        ...


@dataclass(frozen=True)
class HashedWords(Settings):
    """Counts of words, hashed to a fixed number of places: √count, times idf where there are weights, of length 1.

    Nothing is learnt of the texts that are encoded, so that vectors of different users and processes can be compared,
    and nothing has to be forgotten.

    Attributes:
        dimension: number of places D.
        idf: weight of each place, [D]; () weighs all alike. `fitted` computes them of public texts.
    """

    dimension: int = 1024
    idf: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.dimension < 1 or len(self.idf) not in (0, self.dimension):
            raise ConfigError(f"expected a dimension of 1 or more and as many idf, got {self.dimension}")

    @classmethod
    def fitted(cls, texts: Sequence[str], dimension: int = 1024) -> HashedWords:
        """With idf = ln((1 + N) / (1 + n)) + 1 of places that n of N public texts use.

        Args:
            texts: that belong to no user: their statistics stay in every vector.
            dimension: number of places.
        """
        counts = Counter(place for text in texts for place in {_place(word, dimension) for word in _words(text)})
        total = 1 + len(texts)
        return cls(dimension, tuple(math.log(total / (1 + counts[place])) + 1.0 for place in range(dimension)))

    @cached_property
    def identity(self) -> str:
        """Dimension and a checksum of the weights."""
        weights = f" idf {zlib.crc32(np.asarray(self.idf).tobytes()):08x}" if self.idf else ""
        return f"hashed words {self.dimension}{weights}"

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of N texts, fp32 [N, D]; zeros for a text without a word."""
        vectors = np.zeros((len(texts), self.dimension), np.float32)
        for row, text in zip(vectors, texts, strict=True):
            for place, count in Counter(_place(word, self.dimension) for word in _words(text)).items():
                row[place] = math.sqrt(count) * (self.idf[place] if self.idf else 1.0)
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def _words(text: str) -> list[str]:
    return [word for word in words_and_marks(text.lower()) if word.isalnum()]


def _place(word: str, dimension: int) -> int:
    return zlib.crc32(word.encode("utf-8", "surrogatepass")) % dimension


@dataclass(frozen=True)
class ModelContexts(Settings):
    """A frozen sentence encoder, such as all-MiniLM-L6-v2 or a plain BERT; it is loaded when it is first asked.

    The paper's encoders are masked means of the last layer, 512 tokens, length 1: a plain encoder with
    `max_length: 512` and the default pooling.

    Attributes:
        encoder: which, and how it reads; its similarity must be `cosine`.
    """

    encoder: EncoderConfig

    def __post_init__(self) -> None:
        if self.encoder.compared_by != "cosine":
            raise ConfigError("encoder.similarity: contexts are compared by cosine")

    @cached_property
    def _loaded(self) -> TextEncoder:
        return self.encoder.load()

    @cached_property
    def identity(self) -> str:
        """The encoder's own identity, with a hash of its weights."""
        return json.dumps(self._loaded.identity, sort_keys=True)

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of N texts, fp32 [N, D], of length 1.

        Raises:
            ModelError: no readable encoder, or numbers that are not finite.
        """
        return self._loaded.encode(texts, "passage")


@dataclass(frozen=True)
class EndpointContexts(Settings):
    """A model of embeddings behind an OpenAI-compatible endpoint, to which every text that is encoded is sent.

    Attributes:
        remote: the endpoint, up to and with `/embeddings`.
        model: as the endpoint names it. A server that gives other vectors under the same name is not noticed.
        extra_body: more parameters of each request, such as `dimensions`.
        batch_size: most texts of a request.
    """

    remote: RemoteConfig
    model: str
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    batch_size: Annotated[int, at_least(1), harmless] = 64

    def __post_init__(self) -> None:
        if twice := sorted({"model", "input", "encoding_format"} & self.extra_body.keys()):
            raise ConfigError(f"extra_body: {twice[0]} is none of its parameters; it has a key of its own, or none")

    @cached_property
    def _client(self) -> RemoteClient:
        return RemoteClient(self.remote, lambda key: {"Authorization": f"Bearer {key}"})

    @property
    def identity(self) -> str:
        """Endpoint, model and further parameters, without the key."""
        about = {"url": self.remote.url, "model": self.model, **self.extra_body}
        return f"embeddings {json.dumps(about, sort_keys=True)}"

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of N texts, fp32 [N, D], of length 1; zeros for a blank text, which is not sent.

        Raises:
            FailedReplyError: the endpoint refuses a text, or fails at it while it answers others.
            RemoteError: no answer came in time, or vectors of other shapes than one for each text.
            ConfigError: the key is not there, or refused.
        """
        written = [i for i, text in enumerate(texts) if text.strip()]
        sent = [texts[i] for i in written] or ["-"]  # of blank texts alone, D would not be known
        batches = [sent[at : at + self.batch_size] for at in range(0, len(sent), self.batch_size)]
        calls = [Call({"model": self.model, "input": batch, **self.extra_body}, len(batch)) for batch in batches]
        made: dict[int, NDArray[np.float32]] = {}
        failed: list[ReplyError] = []
        self._client.ask(calls, _embeddings, made.__setitem__, lambda _, error: failed.append(error))
        if failed:
            raise failed[0]
        dimension = made[0].shape[1]
        if any(made[number].shape != (len(batch), dimension) for number, batch in enumerate(batches)):
            raise RemoteError(f"{self.remote.url}: expected a vector for each text, all of one length")
        vectors = np.zeros((len(texts), dimension), np.float32)
        vectors[written] = np.concatenate([made[number] for number in range(len(batches))])[: len(written)]
        return vectors


def _embeddings(answer: Mapping[str, Any]) -> NDArray[np.float32]:
    """The vectors of an answer in the order of their texts, fp32 [N, D], of length 1."""
    try:
        rows = sorted(answer["data"], key=lambda row: row["index"])
        vectors = np.array([row["embedding"] for row in rows], np.float64)
        if [row["index"] for row in rows] != list(range(len(rows))) or vectors.ndim != 2 or not vectors.size:
            raise ValueError("another shape")
    except (KeyError, TypeError, ValueError):
        raise UnintelligibleAnswer("an answer without a vector of numbers for each text") from None
    if not np.isfinite(vectors).all():
        raise UnintelligibleAnswer("an answer with numbers that are not finite")
    return (vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)).astype(np.float32)


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
    notes: Sequence[Note],
    encoder: ContextEncoder,
    context: str,
    k: int,
    least: float = _ANY,
    fields: Names = (),
) -> list[Note]:
    """The k notes nearest to a context, the best first; those without a vector are left out.

    Args:
        notes: of one user, each body with `encoder`, the identity of what made its vector.
        encoder: of the context.
        context: a text.
        k: how many; all where there are fewer.
        least: the lowest similarity, a cosine from −1 to 1; notes that are further away are left out.
        fields: of a note's body; notes without them, which another kind of agent wrote, are left out.

    Raises:
        EncoderError: a note's vector was made by another encoder.
    """
    kept = _found(notes, fields)
    if not kept:
        return []
    query = encoder.encode([context])[0]
    rows = vectors_of(kept, encoder, len(query))
    return [kept[i] for i in nearest_rows(query, rows, k) if rows[i].astype(float) @ query.astype(float) >= least]


def vectors_of(notes: Sequence[Note], encoder: ContextEncoder, dimension: int) -> NDArray[np.float32]:
    """The vectors of N notes that have one, fp32 [N, D].

    Raises:
        EncoderError: a note's vector was made by another encoder, or is not of dimension D.
    """
    for note in notes:
        if not _made_by(note, encoder, dimension):
            raise EncoderError(
                "its vector was made by another encoder than the one in use", record=note.key, field="encoder"
            )
    return np.frombuffer(b"".join(note.vector or b"" for note in notes), "<f4").reshape(len(notes), dimension)


def _found(notes: Iterable[Note], fields: Names) -> list[Note]:
    """The notes that have a vector and say what an agent reads."""
    return [note for note in notes if note.vector is not None and all(name in note.body for name in fields)]


def _made_by(note: Note, encoder: ContextEncoder, dimension: int) -> bool:
    return note.body.get("encoder") == encoder.identity and len(note.vector or b"") == 4 * dimension


_FEW = 64  # changed notes that are read one by one; of more, all are
_ROUNDING = 2e-6  # `nearest_rows` compares products to six decimals


class NoteIndex(Protocol):
    """Finds a user's notes by the contexts that their vectors stand for."""

    def nearest(
        self, handle: UserHandle, encoder: ContextEncoder, context: str, k: int, least: float = _ANY, fields: Names = ()
    ) -> list[Note]:
        """The user's k notes nearest to a context, the best first and of equals the latest, as they are stored now.

        Args:
            handle: of the user.
            encoder: of the context, and of all notes' vectors.
            context: a text.
            k: how many; all where there are fewer.
            least: the lowest similarity, a cosine from −1 to 1.
            fields: of a note's body; notes without them are left out.

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
    least: float = _ANY,
    fields: Names = (),
) -> list[Note]:
    """As `NoteIndex.nearest`; where another encoder made vectors of the user's, they are made anew and stored.

    Each note's body says in `encoder` what made its vector. A note whose text the encoder refuses gets none: it is
    kept, and not found any more.

    Args:
        index: that finds notes.
        handle: of the user.
        encoder: of the context.
        context: a text.
        k: how many; all where there are fewer.
        texts: what the vectors of notes are made of.
        least: the lowest similarity, a cosine from −1 to 1.
        fields: of a note's body; notes without them are left alone.

    Raises:
        MemoryLimitError: the new vectors are larger than the memory takes.
    """
    try:
        return index.nearest(handle, encoder, context, k, least, fields)
    except EncoderError:
        notes, dimension = _found(handle.notes(), fields), encoder.encode([context]).shape[1]
        old = [note for note in notes if not _made_by(note, encoder, dimension)]
        made = {
            note.key: replace(note, body={**note.body, "encoder": encoder.identity}, vector=vector)
            for note, vector in zip(old, _vectors(encoder, texts(handle, old)), strict=True)
        }
        handle.replace_vectors(list(made.values()))
        return nearest_notes([made.get(note.key, note) for note in notes], encoder, context, k, least)


def _vectors(encoder: ContextEncoder, texts: Sequence[str]) -> list[bytes | None]:
    """The vectors of texts; None for one that is refused."""
    if not texts:
        return []
    try:
        return [to_bytes(vector) for vector in encoder.encode(texts)]
    except ReplyError:
        half = len(texts) // 2
        return [*_vectors(encoder, texts[:half]), *_vectors(encoder, texts[half:])] if half else [None]


class ExactIndex:
    """Reads the user's notes from the store and compares all of them. It keeps nothing."""

    def nearest(
        self, handle: UserHandle, encoder: ContextEncoder, context: str, k: int, least: float = _ANY, fields: Names = ()
    ) -> list[Note]:
        """As `NoteIndex.nearest` says."""
        return nearest_notes(handle.notes(), encoder, context, k, least, fields)

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
        self._kept: OrderedDict[tuple[Any, ...], _UserVectors] = OrderedDict()  # by handle, encoder, D and fields
        self._lock = threading.Lock()

    def nearest(
        self, handle: UserHandle, encoder: ContextEncoder, context: str, k: int, least: float = _ANY, fields: Names = ()
    ) -> list[Note]:
        """As `NoteIndex.nearest` says."""
        if not handle.number:
            return []  # nobody's: there is nothing to be kept
        query = encoder.encode([context])
        with self._lock:
            place = (handle.identity, encoder.identity, query.shape[1], fields)
            own = self._kept.setdefault(place, _UserVectors(self._faiss, query.shape[1]))
            self._kept.move_to_end(place)
            while len(self._kept) > self._users:
                self._kept.popitem(last=False)
            own.update(handle, encoder, fields)
            keys = own.candidates(query, k)
        notes = [note for note in map(handle.note, keys) if note is not None]
        notes.sort(key=lambda note: (note.event, note.key))
        return nearest_notes(notes, encoder, context, k, least, fields)

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

    def update(self, handle: UserHandle, encoder: ContextEncoder, fields: Names) -> None:
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
        kept = _found(read, fields)
        rows = vectors_of(kept, encoder, self._index.d)
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
