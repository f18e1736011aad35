"""Notes and their earlier versions within one transaction: what agents derive, and what somebody decides on one note.

A version holds from `valid_from` to `valid_to`. The latest one is in `notes`, those before it are in `versions`. A
deleted note leaves a row without content, so that its versions go on counting and earlier events do not bring it back.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.personalization.store.database import SqlDatabase, SqlSession
from finegrained_rlhf.personalization.store.protocol import (
    MemoryLimitError,
    MemoryLimits,
    Note,
    NoteChange,
    NoteConflictError,
    NoteDecision,
    NoteState,
)

NOTE_FIELDS = "key, body, vector, version, event, state, valid_from, valid_to, decided"
STATES: tuple[NoteState, ...] = ("used", "held", "deleted")
"""A note's state by the number that is stored; an expired one is stored as used until a time."""
IN_USE = " AND state = 0 AND (valid_to IS NULL OR valid_to > ?)"
_STALE = b""  # stands for a vector that has to be made anew


def text_of(word: str | bytes) -> str:
    """A name or key as its column gives it."""
    return word if isinstance(word, str) else word.decode()


def read_note(row: Sequence[Any], now: float | None = None) -> Note:
    """A note of a row of `NOTE_FIELDS`.

    Args:
        row: of the table.
        now: seconds since 1970; a note that was used until then has expired. None leaves the state as it is stored.
    """
    state = STATES[int(row[5])]
    if state == "used" and now is not None and row[7] is not None and row[7] <= now:
        state = "expired"
    return Note(
        text_of(row[0]), json.loads(row[1]), row[2], int(row[3]), int(row[4]), state, row[6], row[7], int(row[8])
    )


def check_room(session: SqlSession, table: str, user: int, limit: int) -> None:
    """Refuse one row too many; deleted notes take no room.

    Raises:
        MemoryLimitError: the user has as many as there may be.
    """
    there = " AND state <> 2" if table == "notes" else ""
    (count,) = session.execute(f'SELECT COUNT(*) FROM {table} WHERE "user" = ?{there}', (user,)).fetchone()
    if count >= limit:
        raise MemoryLimitError(f"{table}: the user has {count}, the most there may be (limits.{table})")


class NoteRows:
    """The notes of one user, whose row this transaction holds.

    Args:
        session: the transaction.
        database: that it is of.
        limits: what is refused.
        user: the user's number.
    """

    def __init__(self, session: SqlSession, database: SqlDatabase, limits: MemoryLimits, user: int) -> None:
        self._session, self._word, self._limits, self._user = session, database.word, limits, user
        self._now = time.time()

    def write(self, change: NoteChange, text: str, event: int) -> None:
        """Write what an agent derived, unless somebody has decided otherwise, as `UserHandle.apply` says.

        Args:
            change: of a note.
            text: JSON of its body.
            event: id of the event that it was derived from.

        Raises:
            NoteConflictError: the note has another version by now.
            MemoryLimitError: a note too many.
        """
        note = self._find(change.key)
        if note is not None and (note.state == "held" or event < note.decided):
            return
        used = note is not None and note.state == "used"
        if change.expected != (note.version if note is not None and used else 0):
            raise NoteConflictError(f"note: expected version {change.expected}, another process has changed it")
        if self._was_removed(change.body, event):
            return
        if note is None or note.state == "deleted":
            check_room(self._session, "notes", self._user, self._limits.notes)
        values = (text, change.vector, 0, note.valid_to if note is not None and used else None, 0)
        removed = note.decided if note is not None and note.state == "expired" else 0
        self._put(note, change.key, values, event, change.evidence, removed)

    def decide(self, decision: NoteDecision, event: int) -> None:
        """Carry out a decision on a note, as `UserHandle.decide` says.

        Args:
            decision: on which note, and what.
            event: id of the event that records it.

        Raises:
            DataError: there is no such note, or no such field.
            NoteConflictError: the note has another version than the one that was seen.
            MemoryLimitError: a corrected note is too large.
        """
        note = self._find(decision.note)
        if note is not None and decision.expected not in (None, note.version):
            raise NoteConflictError(f"note: expected version {decision.expected}, it has version {note.version}")
        if note is None or note.state == "deleted":
            raise DataError("there is no such note of this user", field="note", record=decision.note)
        body, vector, state, until, decided = note.body, note.vector, int(note.state == "held"), note.valid_to, event
        removes = decision.action in ("correct", "delete")
        if decision.action == "correct":
            body = _corrected(body, decision.body, "body")
            if vector is not None:
                body, vector = {**body, "encoder": ""}, _STALE
        elif decision.action == "delete":
            body, vector, state = {}, None, STATES.index("deleted")
        elif decision.action == "expire":
            until = self._now if decision.until is None else decision.until
        else:
            decided = note.decided
            state, until = (1, until) if decision.action == "hold" else (0, None)
        values = (self._limits.body(body, "note"), vector, state, until, decided)
        self._put(note, decision.note, values, event, (), event if removes else 0)

    def _find(self, key: str) -> Note | None:
        row = self._session.execute(
            f'SELECT {NOTE_FIELDS} FROM notes WHERE "user" = ? AND key = ?', (self._user, self._word(key))
        ).fetchone()
        return None if row is None else read_note(row, self._now)

    def _put(
        self,
        before: Note | None,
        key: str,
        values: tuple[str, bytes | None, int, float | None, int],
        event: int,
        evidence: Sequence[int],
        removed: int = 0,
    ) -> None:
        """The next version of a note; the one before goes to the history.

        Args:
            before: what is there.
            key: of the note.
            values: body, vector, state, valid_to and decided.
            event: that the version is derived from.
            evidence: further events that it is derived from.
            removed: the event by which somebody removed what the note said; 0 for none.
        """
        body, vector, state, until, decided = values
        own = (self._user, self._word(key))
        version = 1 if before is None else before.version + 1
        if before is None:
            self._session.execute(
                'INSERT INTO notes ("user", key, body, vector, version, event, state, valid_from, valid_to, decided) '
                "VALUES (?, ?, ?, ?, 1, ?, ?, ?, ?, ?)",
                (*own, body, vector, event, state, self._now, until, decided),
            )
        else:
            ended = self._now if before.valid_to is None else min(before.valid_to, self._now)
            self._session.execute(
                'INSERT INTO versions ("user", note, version, body, event, state, valid_from, valid_to, removed) '
                'SELECT "user", key, version, body, event, state, valid_from, ?, ? FROM notes '
                'WHERE "user" = ? AND key = ?',
                (ended, removed, *own),
            )
            self._session.execute(
                'DELETE FROM versions WHERE "user" = ? AND note = ? AND version < ?',
                (*own, version - self._limits.versions),
            )
            self._session.execute(
                "UPDATE notes SET body = ?, vector = ?, version = ?, event = ?, state = ?, valid_from = ?, "
                'valid_to = ?, decided = ? WHERE "user" = ? AND key = ?',
                (body, vector, version, event, state, self._now, until, decided or before.decided, *own),
            )
        for source in sorted({event, *evidence}):
            self._session.execute(
                'INSERT INTO evidence ("user", note, version, event) VALUES (?, ?, ?, ?)', (*own, version, source)
            )

    def _was_removed(self, body: Mapping[str, Any], event: int) -> bool:
        """Whether somebody removed a note that said the same, after an event."""
        rows = self._session.execute(
            'SELECT body FROM versions WHERE "user" = ? AND removed > ? '
            'UNION ALL SELECT body FROM notes WHERE "user" = ? AND decided > ? AND valid_to <= ?',  # expired ones
            (self._user, event, self._user, event, self._now),
        ).fetchall()
        return any(_says(json.loads(row[0])) == _says(body) for row in rows)


def _says(body: Mapping[str, Any]) -> str:
    return json.dumps({name: value for name, value in body.items() if name != "encoder"}, sort_keys=True)


def _corrected(before: Any, after: Any, field: str) -> Any:
    """A value with another one in its place; of an object, with other values of its fields.

    Raises:
        DataError: a field that is not there, or a value of another type.
    """
    if not isinstance(before, Mapping):
        if type(before) is not type(after):
            raise DataError(f"expected {type(before).__name__}, got {type(after).__name__}", field=field)
        return after
    known = sorted(set(before) - {"encoder"})
    if not isinstance(after, Mapping) or not set(after) <= set(known):
        raise DataError(f"expected an object with some of the note's fields {', '.join(known)}", field=field)
    return {**before, **{name: _corrected(before[name], value, f"{field}.{name}") for name, value in after.items()}}
