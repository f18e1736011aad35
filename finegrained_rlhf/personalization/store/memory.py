"""The memory of users: each has a handle, which reads and writes what is stored of this user and of nobody else.

Knows events, notes and versions. Does not know what they mean, nor any language model: no transaction is open while
something is derived.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from finegrained_rlhf.personalization.store.database import Database
from finegrained_rlhf.personalization.store.records import (
    Event,
    ForgottenUserError,
    MemoryLimitError,
    MemoryLimits,
    Note,
    NoteChange,
    NoteConflictError,
    RepeatedKeyError,
)

_EVENT = "id, key, kind, body, applied"
_NOTE = "key, body, vector, version, event"


class UserMemory:
    """A file in which users' events and notes are kept. Many processes and threads may write at once.

    Args:
        path: the SQLite file; it is made where there is none.
        limits: what is refused.
        durable: whether what was acknowledged survives a loss of power (a flush to disk for each write); it survives a
            kill of the process in any case.
        patience_s: seconds to wait for other processes.

    Raises:
        StoreError: it is another program's file, is damaged, or cannot be written.
    """

    def __init__(
        self, path: str | Path, limits: MemoryLimits | None = None, durable: bool = True, patience_s: float = 60.0
    ) -> None:
        self.limits = limits or MemoryLimits()
        self._database = Database(path, durable, patience_s)

    def user(self, name: str) -> UserHandle:
        """The handle of a user, who is entered where there is none of that name.

        Args:
            name: who it is, from the caller's own login, never from a text. Names are compared byte by byte.

        Raises:
            DataError: a blank name, or no text.
            MemoryLimitError: a name that is too long.
        """
        self.limits.name(name, "user")
        found = self._database.read("SELECT id FROM users WHERE name = ?", (name,))
        if not found:
            with self._database.transaction() as file:
                file.execute("INSERT OR IGNORE INTO users (name) VALUES (?)", (name,))
                found = file.execute("SELECT id FROM users WHERE name = ?", (name,)).fetchall()
        return UserHandle(self._database, self.limits, int(found[0][0]))

    def known(self, name: str) -> UserHandle | None:
        """The handle of a user who is there; None where there is none. Nothing is written.

        Args:
            name: as for `user`.

        Raises:
            DataError: a blank name, or no text.
            MemoryLimitError: a name that is too long.
        """
        self.limits.name(name, "user")
        found = self._database.read("SELECT id FROM users WHERE name = ?", (name,))
        return UserHandle(self._database, self.limits, int(found[0][0])) if found else None

    def forget(self, name: str) -> bool:
        """Remove a user and leave no trace of what was stored: not in the file, its log or its indexes.

        When this returns, the files hold nothing of it. Handles of the user are refused from then on, so that work
        under way brings nothing back. Copies of the files, and blocks that the file system or the device has set free,
        are beyond it.

        Returns:
            Whether there was such a user.

        Raises:
            StoreError: other processes keep the file busy: the user is forgotten, and the files are cleaned later.
        """
        self.limits.name(name, "user")
        with self._database.transaction() as file:
            row = file.execute("SELECT id FROM users WHERE name = ?", (name,)).fetchone()
            if row is not None:
                file.execute("INSERT INTO unfinished DEFAULT VALUES")
                for table in ("notes", "events"):
                    file.execute(f"DELETE FROM {table} WHERE user = ?", row)
                file.execute("DELETE FROM users WHERE id = ?", row)
        if row is not None or self._database.read("SELECT 1 FROM unfinished"):
            self._database.scrub()
        return row is not None

    def close(self) -> None:
        """Let go of the file."""
        self._database.close()


class UserHandle:
    """What is stored of one user; made by `UserMemory.user`.

    An event is written first and is safe from then on. What follows from it is derived without a transaction, and
    `apply` writes the notes and marks the event in one. A process that dies in between leaves the event in `pending`.
    """

    def __init__(self, database: Database, limits: MemoryLimits, number: int) -> None:
        self._database, self._limits, self._number = database, limits, number

    def record(self, key: str, kind: str, body: Mapping[str, Any]) -> Event:
        """Write an event; the same one again changes nothing and gives what is there.

        Args:
            key: idempotency key, the caller's choice, unique for the user.
            kind: what kind of event.
            body: a JSON object.

        Raises:
            RepeatedKeyError: the key was used for another event.
            MemoryLimitError: it is too large, or one too many.
            ForgottenUserError: the user was forgotten.
            DataError: a value that JSON cannot hold, or a blank key.
        """
        self._limits.name(key, "key")
        self._limits.name(kind, "kind")
        text = self._limits.body(body, "body")
        with self._database.transaction() as file:
            self._check_known(file)
            found = file.execute(f"SELECT {_EVENT} FROM events WHERE user = ? AND key = ?", (self._number, key))
            if (row := found.fetchone()) is not None:
                if (row[2], row[3]) != (kind, text):
                    raise RepeatedKeyError("key: it was used before for another event of this user")
                return _event(row)
            self._check_room(file, "events", self._limits.events)
            entered = file.execute(
                "INSERT INTO events (user, key, kind, body) VALUES (?, ?, ?, ?)", (self._number, key, kind, text)
            )
            return Event(int(entered.lastrowid or 0), key, kind, json.loads(text), False)

    def apply(self, event: Event, changes: Sequence[NoteChange] = ()) -> bool:
        """Write what follows from an event, all of it or nothing, and mark the event.

        Args:
            event: that was recorded.
            changes: of notes, each with the version that it was derived from.

        Returns:
            Whether it was written; False where another process had applied the event before.

        Raises:
            NoteConflictError: a note has another version by now: nothing was written; derive again.
            MemoryLimitError: a note is too large, or one too many.
            ForgottenUserError: the user was forgotten, or the event is not this user's.
        """
        texts = [self._limits.body(change.body, "note") for change in changes]
        for change in changes:
            self._limits.name(change.key, "note key")
            if change.vector is not None and len(change.vector) > self._limits.vector_bytes:
                raise MemoryLimitError(f"vector: more than {self._limits.vector_bytes} bytes (limits.vector_bytes)")
        with self._database.transaction() as file:
            self._check_known(file)
            own = file.execute("SELECT applied FROM events WHERE id = ? AND user = ?", (event.id, self._number))
            if (row := own.fetchone()) is None:
                raise ForgottenUserError("the event is not in this user's log")
            if row[0]:
                return False
            for change, text in zip(changes, texts, strict=True):
                self._write(file, change, text, event.id)
            file.execute("UPDATE events SET applied = 1 WHERE id = ?", (event.id,))
        return True

    def _write(self, file: sqlite3.Connection, change: NoteChange, text: str, event: int) -> None:
        if change.expected == 0:
            self._check_room(file, "notes", self._limits.notes)
            done = file.execute(
                "INSERT OR IGNORE INTO notes (user, key, body, vector, version, event) VALUES (?, ?, ?, ?, 1, ?)",
                (self._number, change.key, text, change.vector, event),
            )
        else:
            done = file.execute(
                "UPDATE notes SET body = ?, vector = ?, version = version + 1, event = ? "
                "WHERE user = ? AND key = ? AND version = ?",
                (text, change.vector, event, self._number, change.key, change.expected),
            )
        if done.rowcount != 1:
            raise NoteConflictError(f"note: expected version {change.expected}, another process has changed it")

    def events(self, kind: str | None = None, last: int | None = None) -> list[Event]:
        """The user's events, the oldest first.

        Args:
            kind: only those of a kind.
            last: only so many of the latest.
        """
        where = "" if kind is None else " AND kind = ?"
        values = [self._number, *([] if kind is None else [kind]), -1 if last is None else last]
        rows = self._database.read(
            f"SELECT {_EVENT} FROM events WHERE user = ?{where} ORDER BY id DESC LIMIT ?", values
        )
        return [_event(row) for row in reversed(rows)]

    def pending(self) -> list[Event]:
        """Events that nothing was derived from yet, the oldest first."""
        statement = f"SELECT {_EVENT} FROM events WHERE user = ? AND applied = 0 ORDER BY id"
        return [_event(row) for row in self._database.read(statement, (self._number,))]

    def notes(self) -> list[Note]:
        """The user's notes, in the order of the events that they were last derived from."""
        rows = self._database.read(f"SELECT {_NOTE} FROM notes WHERE user = ? ORDER BY event, key", (self._number,))
        return [_note(row) for row in rows]

    def note(self, key: str) -> Note | None:
        """One note; None where there is none of that key."""
        rows = self._database.read(f"SELECT {_NOTE} FROM notes WHERE user = ? AND key = ?", (self._number, key))
        return _note(rows[0]) if rows else None

    def _check_known(self, file: sqlite3.Connection) -> None:
        if file.execute("SELECT 1 FROM users WHERE id = ?", (self._number,)).fetchone() is None:
            raise ForgottenUserError("the user was forgotten: open a new handle to begin anew")

    def _check_room(self, file: sqlite3.Connection, table: str, limit: int) -> None:
        (count,) = file.execute(f"SELECT COUNT(*) FROM {table} WHERE user = ?", (self._number,)).fetchone()
        if count >= limit:
            raise MemoryLimitError(f"{table}: the user has {count}, the most there may be (limits.{table})")


def _event(row: Sequence[Any]) -> Event:
    return Event(int(row[0]), row[1], row[2], json.loads(row[3]), bool(row[4]))


def _note(row: Sequence[Any]) -> Note:
    return Note(row[0], json.loads(row[1]), row[2], int(row[3]), int(row[4]))
