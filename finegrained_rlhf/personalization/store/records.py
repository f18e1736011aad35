"""What is stored of a user, within which limits, and the errors of the store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from finegrained_rlhf.core.checks import require_text
from finegrained_rlhf.core.errors import ConfigError, DataError, FineGrainedError


class MemoryLimitError(FineGrainedError):
    """A text or a user's memory would exceed a limit. Nothing of it was stored, and nothing is cut."""


class NoteConflictError(FineGrainedError):
    """A note is no longer at the version that a change was derived from: derive again from what is there now."""


class RepeatedKeyError(FineGrainedError):
    """An idempotency key was used before for another event."""


class ForgottenUserError(FineGrainedError):
    """The user was forgotten after this handle was opened; what was derived for it is dropped."""


class ConsentError(FineGrainedError):
    """A user has not allowed what was to be done with what they say, or decisions that cannot go together."""


class StoreError(FineGrainedError):
    """A memory cannot be opened, read or written, or a forgotten user's traces cannot be removed yet."""


@dataclass(frozen=True)
class MemoryLimits:
    """What a memory refuses. Bytes are those of UTF-8.

    Attributes:
        name_bytes: of a user's name, and of every key.
        body_bytes: of an event's or a note's JSON.
        vector_bytes: of a note's vector.
        events: of one user.
        notes: of one user.
    """

    name_bytes: int = 256
    body_bytes: int = 262_144
    vector_bytes: int = 65_536
    events: int = 100_000
    notes: int = 10_000

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise ConfigError(f"limits.{name}: expected at least 1, got {value}")

    def name(self, value: str, what: str) -> str:
        """A name or key that fits.

        Raises:
            DataError: it is no text, or blank.
            MemoryLimitError: it is too long.
        """
        require_text(value, what)
        if len(value.encode()) > self.name_bytes:
            raise MemoryLimitError(f"{what}: longer than {self.name_bytes} bytes (limits.name_bytes)")
        return value

    def vector(self, value: bytes | None) -> None:
        """Refuse a vector that does not fit.

        Raises:
            MemoryLimitError: it is too large.
        """
        if value is not None and len(value) > self.vector_bytes:
            raise MemoryLimitError(f"vector: more than {self.vector_bytes} bytes (limits.vector_bytes)")

    def body(self, value: Mapping[str, Any], what: str) -> str:
        """JSON of a body that fits.

        Raises:
            DataError: it is not JSON, or holds a lone surrogate.
            MemoryLimitError: it is too large.
        """
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True)
            size = len(text.encode())
        except (TypeError, ValueError, RecursionError) as error:
            raise DataError(f"expected values that JSON can hold ({error})", field=what) from None
        if size > self.body_bytes:
            raise MemoryLimitError(f"{what}: {size} bytes, more than {self.body_bytes} (limits.body_bytes)")
        return text


@dataclass(frozen=True)
class Event:
    """Something that happened with a user.

    Attributes:
        id: its place in the log; later events have higher ones.
        key: the caller's idempotency key, unique for the user.
        kind: for example `edit`.
        body: a JSON object.
        applied: whether the notes say what follows from it.
        at: when it was recorded, in seconds since 1970 (UTC); None in a memory from before times were kept.
        used: what the draft or action rested on, a JSON object; None where that was not said.
        tries: how often it could not be learnt from; 0 for an event that is applied.
    """

    id: int
    key: str
    kind: str
    body: Mapping[str, Any]
    applied: bool
    at: float | None = None
    used: Mapping[str, Any] | None = None
    tries: int = 0


@dataclass(frozen=True)
class Note:
    """Something that was derived from events.

    Attributes:
        key: unique for the user.
        body: a JSON object.
        vector: by which it is retrieved, as bytes; None for a note that is not.
        version: 1 for a new note, one more with each change.
        event: id of the event that it was last derived from.
    """

    key: str
    body: Mapping[str, Any]
    vector: bytes | None
    version: int
    event: int


@dataclass(frozen=True)
class NoteChange:
    """A note to be written.

    Attributes:
        key: of the note.
        body: what it shall say.
        vector: by which it shall be retrieved.
        expected: the version that the change was derived from; 0: there was no such note.
        evidence: ids of the events that it was derived from, beside the one that is applied.
    """

    key: str
    body: Mapping[str, Any] = field(default_factory=dict)
    vector: bytes | None = None
    expected: int = 0
    evidence: tuple[int, ...] = ()


@dataclass(frozen=True)
class Consent:
    """What a user has decided.

    Attributes:
        store: whether events and notes may be stored.
        train: whether what is stored may be used to train models.
        at: when it was recorded, in seconds since 1970 (UTC).
    """

    store: bool
    train: bool
    at: float
