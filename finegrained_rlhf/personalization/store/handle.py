"""What is stored of one user, in SQL that SQLite and PostgreSQL read: every statement has the user's number."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from finegrained_rlhf.core.generation.wrappers import AnswerOwner
from finegrained_rlhf.personalization.store.records import (
    ConsentError,
    Event,
    ForgottenUserError,
    MemoryLimitError,
    MemoryLimits,
    Note,
    NoteChange,
    NoteConflictError,
    RepeatedKeyError,
)

_EVENT = "id, key, kind, body, applied, at, used"
_NOTE = "key, body, vector, version, event"
_ALL = 2**62


class SqlSession(Protocol):
    """An open transaction."""

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> Any:
        """Run a statement, with `?` for values; what it gives has `fetchone`, `fetchall` and `rowcount`."""
        ...


class SqlDatabase(Protocol):
    """A database as the store uses it.

    Attributes:
        identity: of this opening; unlike any other's.
        lock: what a query ends with whose row nobody else may change until the transaction ends.
    """

    identity: str
    lock: str

    def word(self, text: str) -> Any:
        """A name or key as its column keeps it: compared byte by byte."""
        ...

    def transaction(self) -> AbstractContextManager[SqlSession]:
        """All that is done within, or nothing.

        Raises:
            StoreError: the database cannot be written, or others held it longer than the patience.
        """
        ...

    def read(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of one query.

        Raises:
            StoreError: the database cannot be read.
        """
        ...

    def scrub(self) -> None:
        """Leave nothing of deleted content where the database keeps its tables, and empty `unfinished`.

        Raises:
            StoreError: others kept the database busy: the content is deleted, and what is left of it goes later.
        """
        ...

    def close(self) -> None:
        """Let go of the database."""
        ...


class SqlHandle:
    """A `UserHandle` over a database.

    Args:
        database: where the user is.
        limits: what is refused.
        number: the user's; 0 is nobody's.
        consent_required: whether nothing is stored of a user without a decision.
        answer_owner: of answers that are kept of the user.
    """

    def __init__(
        self,
        database: SqlDatabase,
        limits: MemoryLimits,
        number: int,
        consent_required: bool,
        answer_owner: AnswerOwner,
    ) -> None:
        self._database, self._limits, self.number = database, limits, number
        self._consent_required, self.answer_owner = consent_required, answer_owner

    @property
    def owner(self) -> int:
        """Of a round that begins now, as `UserHandle.owner` says."""
        return self.number or -1 - self.answer_owner.epoch

    @property
    def identity(self) -> str:
        """Of this opening of the database and this user."""
        return f"{self._database.identity}/{self.number}"

    def record(self, key: str, kind: str, body: Mapping[str, Any], used: Mapping[str, Any] | None = None) -> Event:
        """Write an event, as `UserHandle.record` says."""
        self._limits.name(key, "key")
        self._limits.name(kind, "kind")
        text = self._limits.body(body, "body")
        rests = None if used is None else self._limits.body(used, "used")
        own = (self.number, self._database.word(key))
        find = f'SELECT {_EVENT} FROM events WHERE "user" = ? AND key = ?'
        with self._database.transaction() as session:
            self._check_consent(session)
            if (row := session.execute(find, own).fetchone()) is not None:
                event = _event(row)
                if (event.kind, row[3]) != (kind, text):
                    raise RepeatedKeyError("key: it was used before for another event of this user")
                return event
            self._check_room(session, "events", self._limits.events)
            session.execute(
                'INSERT INTO events ("user", key, kind, body, at, used) VALUES (?, ?, ?, ?, ?, ?)',
                (*own, self._database.word(kind), text, time.time(), rests),
            )
            return _event(session.execute(find, own).fetchone())

    def apply(self, event: Event, changes: Sequence[NoteChange] = ()) -> bool:
        """Write what follows from an event, as `UserHandle.apply` says."""
        texts = [self._limits.body(change.body, "note") for change in changes]
        for change in changes:
            self._limits.name(change.key, "note key")
            self._limits.vector(change.vector)
        with self._database.transaction() as session:
            self._decision(session)
            own = session.execute('SELECT applied FROM events WHERE id = ? AND "user" = ?', (event.id, self.number))
            if (row := own.fetchone()) is None:
                raise ForgottenUserError("the event is not in this user's log")
            if row[0] > 0:
                return False
            for change, text in zip(changes, texts, strict=True):
                self._write(session, change, text, event.id)
            session.execute("UPDATE events SET applied = 1 WHERE id = ?", (event.id,))
        return True

    def count_try(self, event: Event) -> None:
        """Count that an event could not be learnt from, as `UserHandle.count_try` says."""
        with self._database.transaction() as session:
            session.execute(
                'UPDATE events SET applied = applied - 1 WHERE id = ? AND "user" = ? AND applied <= 0',
                (event.id, self.number),
            )

    def replace_vectors(self, notes: Sequence[Note]) -> None:
        """Write vectors that were made anew, as `UserHandle.replace_vectors` says."""
        for note in notes:
            self._limits.vector(note.vector)
        rows = [
            (self._limits.body(note.body, "note"), note.vector, self._database.word(note.key), note.version)
            for note in notes
        ]
        with self._database.transaction() as session:
            for body, vector, key, version in rows:
                session.execute(
                    'UPDATE notes SET body = ?, vector = ? WHERE "user" = ? AND key = ? AND version = ?',
                    (body, vector, self.number, key, version),
                )

    def _write(self, session: SqlSession, change: NoteChange, text: str, event: int) -> None:
        key = self._database.word(change.key)
        if change.expected == 0:
            self._check_room(session, "notes", self._limits.notes)
            done = session.execute(
                'INSERT INTO notes ("user", key, body, vector, version, event) VALUES (?, ?, ?, ?, 1, ?) '
                "ON CONFLICT DO NOTHING",
                (self.number, key, text, change.vector, event),
            )
        else:
            done = session.execute(
                "UPDATE notes SET body = ?, vector = ?, version = version + 1, event = ? "
                'WHERE "user" = ? AND key = ? AND version = ?',
                (text, change.vector, event, self.number, key, change.expected),
            )
        if done.rowcount != 1:
            raise NoteConflictError(f"note: expected version {change.expected}, another process has changed it")
        for source in sorted({event, *change.evidence}):
            session.execute(
                'INSERT INTO evidence ("user", note, version, event) VALUES (?, ?, ?, ?)',
                (self.number, key, change.expected + 1, source),
            )

    def events(self, kind: str | None = None, last: int | None = None) -> list[Event]:
        """The user's events, the oldest first; of a kind, or the latest, if asked."""
        where = "" if kind is None else " AND kind = ?"
        values = [self.number, *([] if kind is None else [self._database.word(kind)]), _ALL if last is None else last]
        rows = self._database.read(
            f'SELECT {_EVENT} FROM events WHERE "user" = ?{where} ORDER BY id DESC LIMIT ?', values
        )
        return [_event(row) for row in reversed(rows)]

    def pending(self) -> list[Event]:
        """Events that nothing was derived from yet, the oldest first, also those for which that failed."""
        statement = f'SELECT {_EVENT} FROM events WHERE "user" = ? AND applied <= 0 ORDER BY id'
        return [_event(row) for row in self._database.read(statement, (self.number,))]

    def notes(self) -> list[Note]:
        """The user's notes, in the order of the events that they were last derived from."""
        rows = self._database.read(f'SELECT {_NOTE} FROM notes WHERE "user" = ? ORDER BY event, key', (self.number,))
        return [_note(row) for row in rows]

    def note(self, key: str) -> Note | None:
        """One note; None where there is none of that key."""
        values = (self.number, self._database.word(key))
        rows = self._database.read(f'SELECT {_NOTE} FROM notes WHERE "user" = ? AND key = ?', values)
        return _note(rows[0]) if rows else None

    def versions(self) -> dict[str, int]:
        """The version of each note by its key."""
        rows = self._database.read('SELECT key, version FROM notes WHERE "user" = ?', (self.number,))
        return {_text(key): int(version) for key, version in rows}

    def evidence(self) -> dict[str, list[tuple[int, int]]]:
        """By the key of a note: (version, id of an event that this version was derived from), the oldest first."""
        rows = self._database.read(
            'SELECT note, version, event FROM evidence WHERE "user" = ? '
            'UNION SELECT key, version, event FROM notes WHERE "user" = ? ORDER BY 2, 3',
            (self.number, self.number),
        )
        evidence: dict[str, list[tuple[int, int]]] = {}
        for key, version, event in rows:
            evidence.setdefault(_text(key), []).append((int(version), int(event)))
        return evidence

    def _decision(self, session: SqlSession) -> int | None:
        """Whether the user may be stored, as the database has it; others wait until the transaction ends."""
        result = session.execute(f"SELECT may_store FROM users WHERE id = ?{self._database.lock}", (self.number,))
        if (row := result.fetchone()) is None:
            raise ForgottenUserError("the user was forgotten: open a new handle to begin anew")
        return row[0]

    def _check_consent(self, session: SqlSession) -> None:
        decided = self._decision(session)
        if decided == 0 or (decided is None and self._consent_required):
            raise ConsentError("the user has not allowed that anything is stored (set_consent)")

    def _check_room(self, session: SqlSession, table: str, limit: int) -> None:
        (count,) = session.execute(f'SELECT COUNT(*) FROM {table} WHERE "user" = ?', (self.number,)).fetchone()
        if count >= limit:
            raise MemoryLimitError(f"{table}: the user has {count}, the most there may be (limits.{table})")


def _text(word: str | bytes) -> str:
    return word if isinstance(word, str) else word.decode()


def _event(row: Sequence[Any]) -> Event:
    used = None if row[6] is None else json.loads(row[6])
    applied = int(row[4])  # 1: applied; 0 or below: how often that was tried in vain
    return Event(
        int(row[0]), _text(row[1]), _text(row[2]), json.loads(row[3]), applied > 0, row[5], used, max(0, -applied)
    )


def _note(row: Sequence[Any]) -> Note:
    return Note(_text(row[0]), json.loads(row[1]), row[2], int(row[3]), int(row[4]))
