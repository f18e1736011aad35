"""What is stored of a user, within which limits, and the protocol of a store, which agents and indexes rely on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

from finegrained_rlhf.core.checks import is_time, require_text
from finegrained_rlhf.core.errors import ConfigError, DataError, FineGrainedError
from finegrained_rlhf.core.generation.wrappers import AnswerOwner

Body = Mapping[str, Any]  # a JSON object


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
        versions: earlier ones of a note that are kept; this alone refuses nothing: the oldest go.
    """

    name_bytes: int = 256
    body_bytes: int = 262_144
    vector_bytes: int = 65_536
    events: int = 100_000
    notes: int = 10_000
    versions: int = 100

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


NOTE_DECISION = "note"
"""The kind of the events by which somebody decided on one note."""
NoteAction = Literal["correct", "delete", "expire", "hold", "release"]
NoteState = Literal["used", "held", "expired", "deleted"]


@dataclass(frozen=True)
class Note:
    """Something that was derived from events.

    Attributes:
        key: unique for the user.
        body: a JSON object.
        vector: by which it is retrieved, as bytes; None for a note that is not.
        version: 1 for a new note, one more with each change.
        event: id of the event that it was last derived from.
        state: agents see notes that are `used`, and no others.
        valid_from: since when this version holds, in seconds since 1970 (UTC); None where that was not kept.
        valid_to: until when; None: until something else is known.
        decided: id of the latest event by which somebody corrected, deleted or expired the note; 0 for none.
    """

    key: str
    body: Mapping[str, Any]
    vector: bytes | None
    version: int
    event: int
    state: NoteState = "used"
    valid_from: float | None = None
    valid_to: float | None = None
    decided: int = 0


@dataclass(frozen=True)
class NoteDecision:
    """What a user, or the application, decides on one note.

    Attributes:
        note: its key.
        action: `correct` puts fields in the place of the note's own; `delete` and `hold` keep the note from use, and so
            does `expire` from a time on; `release` ends a hold and an expiry.
        body: fields of the note's body, for `correct` alone.
        until: for `expire`, in seconds since 1970 (UTC); None is now.
        by: who decides.
        expected: the version that was seen; None takes any.

    Raises:
        ConfigError: no such action or person, fields and times where none belong, or no such time or version.
    """

    note: str
    action: NoteAction
    body: Mapping[str, Any] = field(default_factory=dict)
    until: float | None = None
    by: Literal["user", "application"] = "application"
    expected: int | None = None

    def __post_init__(self) -> None:
        for name, names in (("action", get_args(NoteAction)), ("by", ("user", "application"))):
            if getattr(self, name) not in names:
                raise ConfigError(f"{name}: expected one of {', '.join(names)}, got {getattr(self, name)!r}")
        if bool(self.body) != (self.action == "correct"):
            raise ConfigError("body: expected fields of the note with action correct, and with no other action")
        if self.until is not None and not (self.action == "expire" and is_time(self.until)):
            raise ConfigError("until: expected with action expire alone, in seconds from 1970 to the year 9999")
        if self.expected is not None and type(self.expected) is not int:
            raise ConfigError(f"expected: expected a version, got {self.expected!r}")


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


class UserHandle(Protocol):
    """What is stored of one user.

    An event is written first and is safe from then on. What follows from it is derived without a transaction, and
    `apply` writes the notes and marks the event in one. A process that dies in between leaves the event in `pending`.
    """

    @property
    def number(self) -> int:
        """The user's number, which no other user gets, nor the same one after they were forgotten; 0 for nobody."""
        ...

    @property
    def identity(self) -> str:
        """Of this opening of the store and this user: what is kept in this process belongs to it."""
        ...

    @property
    def owner(self) -> int:
        """Of a round that begins now: the user's number, or below 0, by the epoch, where nothing is stored of them.

        `MemoryStore.user` refuses it when the user was forgotten meanwhile.
        """
        ...

    @property
    def answer_owner(self) -> AnswerOwner:
        """The user as those who keep answers know them, in the epoch in which the handle was opened."""
        ...

    def record(
        self, key: str, kind: str, body: Body, used: Body | None = None, changes: Sequence[NoteChange] | None = None
    ) -> Event:
        """Write an event; the same one again changes nothing and gives what is there.

        Args:
            key: idempotency key, the caller's choice, unique for the user.
            kind: what kind of event.
            body: a JSON object.
            used: what the draft or action rested on, a JSON object; it is not compared when the event comes again.
            changes: of notes that follow from a new event, written with it as `apply` does, all or nothing; None
                leaves the event in `pending`.

        Raises:
            RepeatedKeyError: the key was used for another event.
            MemoryLimitError: it, or a note, is too large, or one too many.
            ForgottenUserError: the user was forgotten.
            ConsentError: the user has not allowed that anything is stored.
            DataError: a value that JSON cannot hold, or a blank key.
        """
        ...

    def decide(self, decision: NoteDecision, key: str | None = None) -> Event:
        """Correct, delete, expire, hold or release one note, at once and whole; the event is the evidence.

        The version before is kept in the history, but for its vector. What agents derive from earlier events does not
        change a note again that was corrected, deleted or expired.

        Args:
            decision: on which note, and what.
            key: idempotency key of the event; a random one by default. The same decision again changes nothing.

        Returns:
            The event, of the kind `NOTE_DECISION`.

        Raises:
            DataError: there is no such user or note, or it has no such field, or none of that type.
            NoteConflictError: the note has another version than the one that was seen.
            RepeatedKeyError: the key was used for another event.
            MemoryLimitError: a corrected note is too large, or the event one too many.
            ForgottenUserError: the user was forgotten.
            ConsentError: a correction, where the user has not allowed that anything is stored.
        """
        ...

    def decisions(self) -> int:
        """How many decisions on notes there were; 0 for nobody."""
        ...

    def history(self, key: str | None = None) -> list[Note]:
        """Earlier versions of one note or of all, the oldest first, without vectors, with the times they held.

        Args:
            key: of the note; None for all.
        """
        ...

    def apply(self, event: Event, changes: Sequence[NoteChange] = (), decisions: int | None = None) -> bool:
        """Write what follows from an event, all of it or nothing, and mark the event.

        A change is left out where somebody has decided otherwise: the note is held, or it was corrected, deleted or
        expired after the event, or it says what somebody removed after the event.

        Args:
            event: that was recorded.
            changes: of notes, each with the version that it was derived from; 0 where none is in use.
            decisions: `decisions()` as it was before the changes were derived; None does not compare.

        Returns:
            Whether it was written; False where another process had applied the event before.

        Raises:
            NoteConflictError: a note has another version by now, or somebody has decided on one meanwhile: nothing was
                written; derive again.
            MemoryLimitError: a note is too large, or one too many.
            ForgottenUserError: the user was forgotten, or the event is not this user's.
        """
        ...

    def count_try(self, event: Event) -> None:
        """Count that an event could not be learnt from (`Event.tries`); nothing of one that is applied, or gone.

        Args:
            event: that was recorded.
        """
        ...

    def replace_vectors(self, notes: Sequence[Note]) -> None:
        """Write bodies and vectors of notes whose vectors were made anew; their versions stay.

        Notes that have changed since they were read are left alone, and so are those of a user who was forgotten.

        Args:
            notes: with the body, the vector and the version that they were read with.

        Raises:
            MemoryLimitError: a body or a vector is too large: none is written.
        """
        ...

    def events(self, kind: str | None = None, last: int | None = None) -> list[Event]:
        """The user's events, the oldest first.

        Args:
            kind: only those of a kind.
            last: only so many of the latest.
        """
        ...

    def event(self, number: int) -> Event:
        """The event of an id, as it is now; ForgottenUserError where this user has none."""
        ...

    def pending(self) -> list[Event]:
        """Events that nothing was derived from yet, the oldest first, also those for which that failed."""
        ...

    def notes(self, unused: bool = False) -> list[Note]:
        """The user's notes, in the order of the events that they were last derived from.

        Args:
            unused: also those that are held, expired or deleted.
        """
        ...

    def note(self, key: str, unused: bool = False) -> Note | None:
        """One note; None where there is none of that key.

        Args:
            key: of the note.
            unused: also one that is held, expired or deleted.
        """
        ...

    def versions(self) -> dict[str, int]:
        """The version of each note in use by its key: what has to be read again by whoever keeps notes."""
        ...

    def evidence(self) -> dict[str, list[tuple[int, int]]]:
        """By the key of a note: (version, id of an event that this version was derived from), the oldest first.

        Of what was written before evidence was kept, only the event of the latest version is known.
        """
        ...


class MemoryStore(Protocol):
    """Users, each with a handle that reads and writes what is stored of this user and of nobody else."""

    limits: MemoryLimits

    def user(self, name: str, owner: int = 0) -> UserHandle:
        """The handle of a user, who is entered where there is none of that name.

        Args:
            name: who it is, from the caller's own login, never from a text. Names are compared byte by byte.
            owner: `UserHandle.owner` of a round that began before; 0 for none.

        Raises:
            DataError: a blank name, or no text.
            MemoryLimitError: a name that is too long.
            ConsentError: the user has refused, or consent is required and not given: nothing is written.
            ForgottenUserError: the user was forgotten after the round began: nothing is written.
        """
        ...

    def known(self, name: str) -> UserHandle | None:
        """The handle of a user who is there; None where there is none. Nothing is written.

        Raises:
            DataError: a blank name, or no text.
            MemoryLimitError: a name that is too long.
        """
        ...

    def reader(self, name: str) -> UserHandle:
        """As `known`, but a handle in which nothing is, and nothing can be written, where there is no such user."""
        ...

    def may_store(self, name: str) -> bool:
        """Whether anything may be stored of a user: by their decision, or where none is there and none is required."""
        ...

    def consent(self, name: str) -> Consent | None:
        """What a user has decided; None where no decision is recorded."""
        ...

    def set_consent(self, name: str, *, store: bool, train: bool) -> Consent:
        """Record what a user has decided, with the time; a later decision takes the place of an earlier one.

        Args:
            name: as for `user`.
            store: whether events and notes may be stored.
            train: whether what is stored may be used to train models.

        Raises:
            ConsentError: training without storing; or no storing where something is stored: then `forget` is meant.
        """
        ...

    def export_user(self, name: str) -> dict[str, Any]:
        """All that is stored of a user, as a JSON object with the version of its form, read at one time.

        Raises:
            DataError: there is no such user.
        """
        ...

    def import_user(self, data: Any, name: str | None = None) -> UserHandle:
        """Store what `export_user` gave, all of it or nothing. Events get new ids, in their order.

        Args:
            data: the JSON object.
            name: of the user; None takes the exported one.

        Raises:
            DataError: there is more than a decision, which stands, of such a user, or the object is not of this form.
            MemoryLimitError: something in it is too large.
            ConsentError: the user has refused to be stored, or consent is required and not in it.
        """
        ...

    def forget(self, name: str) -> bool:
        """Remove a user with all that was stored, the decisions too, but that they may not be stored.

        A refusal stays, as a keyed hash of the name, until `set_consent` allows storing. Handles of the user are
        refused from then on, and so are rounds that began before, so that work under way brings nothing back.

        Returns:
            Whether there was such a user.

        Raises:
            StoreError: the user is forgotten, but what is left of the content could not be overwritten yet.
        """
        ...

    def close(self) -> None:
        """Let go of the store."""
        ...
