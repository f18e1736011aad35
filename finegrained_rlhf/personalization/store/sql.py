"""The memory of users over a database: names, decisions, how a user is forgotten, and what is stored of one user.

SQLite and PostgreSQL both read the statements; every statement about a user has the user's number.
"""

from __future__ import annotations

import hmac
import json
import time
import uuid
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.generation.wrappers import AnswerOwner
from finegrained_rlhf.core.sqlite import MARK_UNFINISHED
from finegrained_rlhf.personalization.store.database import SqlDatabase, SqlSession
from finegrained_rlhf.personalization.store.notes import IN_USE, NOTE_FIELDS, NoteRows, check_room, read_note, text_of
from finegrained_rlhf.personalization.store.portable import exported, import_rows, read_exported
from finegrained_rlhf.personalization.store.protocol import (
    NOTE_DECISION,
    Body,
    Consent,
    ConsentError,
    Event,
    ForgottenUserError,
    MemoryLimits,
    Note,
    NoteChange,
    NoteConflictError,
    NoteDecision,
    RepeatedKeyError,
)

_EVENT = "id, key, kind, body, applied, at, used"
_ALL = 2**62


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

    def record(
        self, key: str, kind: str, body: Body, used: Body | None = None, changes: Sequence[NoteChange] | None = None
    ) -> Event:
        """Write an event, as `UserHandle.record` says."""
        self._limits.name(key, "key")
        self._limits.name(kind, "kind")
        text = self._limits.body(body, "body")
        rests = None if used is None else self._limits.body(used, "used")
        notes = self._texts(changes or ())
        with self._database.transaction() as session:
            self._check_consent(session)
            event, new = self._record(session, key, kind, text, rests, int(changes is not None))
            for change, says in notes if new else ():
                self._rows(session).write(change, says, event.id)
        return event

    def _record(
        self, session: SqlSession, key: str, kind: str, text: str, used: str | None, applied: int = 0
    ) -> tuple[Event, bool]:
        """The event, and whether it is new."""
        own = (self.number, self._database.word(key))
        find = f'SELECT {_EVENT} FROM events WHERE "user" = ? AND key = ?'
        if (row := session.execute(find, own).fetchone()) is not None:
            event = _event(row)
            if (event.kind, row[3]) != (kind, text):
                raise RepeatedKeyError("key: it was used before for another event of this user")
            return event, False
        check_room(session, "events", self.number, self._limits.events)
        session.execute(
            'INSERT INTO events ("user", key, kind, body, applied, at, used) VALUES (?, ?, ?, ?, ?, ?, ?)',
            (*own, self._database.word(kind), text, applied, time.time(), used),
        )
        return _event(session.execute(find, own).fetchone()), True

    def decide(self, decision: NoteDecision, key: str | None = None) -> Event:
        """Correct, delete, expire, hold or release one note, as `UserHandle.decide` says."""
        key = self._limits.name(uuid.uuid4().hex if key is None else key, "key")
        self._limits.name(decision.note, "note")
        text = self._limits.body({**vars(decision), "body": dict(decision.body)}, "body")
        with self._database.transaction() as session:
            if decision.action == "correct":
                self._check_consent(session)
            else:
                self._decision(session)
            event, new = self._record(session, key, NOTE_DECISION, text, None, applied=1)
            if new:
                self._rows(session).decide(decision, event.id)
                session.execute("UPDATE users SET decisions = decisions + 1 WHERE id = ?", (self.number,))
        return event

    def decisions(self) -> int:
        """How many decisions on notes there were."""
        rows = self._database.read("SELECT decisions FROM users WHERE id = ?", (self.number,))
        return int(rows[0][0]) if rows else 0

    def _rows(self, session: SqlSession) -> NoteRows:
        return NoteRows(session, self._database, self._limits, self.number)

    def _texts(self, changes: Sequence[NoteChange]) -> list[tuple[NoteChange, str]]:
        """Changes that fit, each with the JSON of its body."""
        for change in changes:
            self._limits.name(change.key, "note key")
            self._limits.vector(change.vector)
        return [(change, self._limits.body(change.body, "note")) for change in changes]

    def apply(self, event: Event, changes: Sequence[NoteChange] = (), decisions: int | None = None) -> bool:
        """Write what follows from an event, as `UserHandle.apply` says."""
        texts = self._texts(changes)
        with self._database.transaction() as session:
            decided = self._decision(session)[1]
            own = session.execute('SELECT applied FROM events WHERE id = ? AND "user" = ?', (event.id, self.number))
            if (row := own.fetchone()) is None:
                raise ForgottenUserError("the event is not in this user's log")
            if row[0] > 0:
                return False
            if changes and decisions not in (None, decided):
                raise NoteConflictError("note: somebody has decided on one meanwhile")
            rows = self._rows(session)
            for change, text in texts:
                rows.write(change, text, event.id)
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

    def events(self, kind: str | None = None, last: int | None = None) -> list[Event]:
        """The user's events, the oldest first; of a kind, or the latest, if asked."""
        where = "" if kind is None else " AND kind = ?"
        values = [self.number, *([] if kind is None else [self._database.word(kind)]), _ALL if last is None else last]
        rows = self._database.read(
            f'SELECT {_EVENT} FROM events WHERE "user" = ?{where} ORDER BY id DESC LIMIT ?', values
        )
        return [_event(row) for row in reversed(rows)]

    def event(self, number: int) -> Event:
        """One event, as `UserHandle.event` says."""
        rows = self._database.read(f'SELECT {_EVENT} FROM events WHERE "user" = ? AND id = ?', (self.number, number))
        if not rows:
            raise ForgottenUserError("the event is not in this user's log")
        return _event(rows[0])

    def pending(self) -> list[Event]:
        """Events that nothing was derived from yet, the oldest first, also those for which that failed."""
        statement = f'SELECT {_EVENT} FROM events WHERE "user" = ? AND applied <= 0 ORDER BY id'
        return [_event(row) for row in self._database.read(statement, (self.number,))]

    def notes(self, unused: bool = False) -> list[Note]:
        """The user's notes, in the order of the events that they were last derived from; if asked, the unused too."""
        return self._select(unused, "ORDER BY event, key")

    def note(self, key: str, unused: bool = False) -> Note | None:
        """One note; None where there is none of that key in use, or, if asked, at all."""
        notes = self._select(unused, "AND key = ?", self._database.word(key))
        return notes[0] if notes else None

    def _select(self, unused: bool, rest: str, *values: Any) -> list[Note]:
        now = time.time()
        where, times = ("", ()) if unused else (IN_USE, (now,))
        rows = self._database.read(
            f'SELECT {NOTE_FIELDS} FROM notes WHERE "user" = ?{where} {rest}', (self.number, *times, *values)
        )
        return [read_note(row, now) for row in rows]

    def history(self, key: str | None = None) -> list[Note]:
        """Earlier versions of one note or of all, as `UserHandle.history` says."""
        where, values = ("", ()) if key is None else (" AND note = ?", (self._database.word(key),))
        rows = self._database.read(
            "SELECT note, body, NULL, version, event, state, valid_from, valid_to, removed FROM versions "
            f'WHERE "user" = ?{where} ORDER BY event, version, note',
            (self.number, *values),
        )
        return [read_note(row) for row in rows]

    def versions(self) -> dict[str, int]:
        """The version of each note in use by its key."""
        rows = self._database.read(
            f'SELECT key, version FROM notes WHERE "user" = ?{IN_USE}', (self.number, time.time())
        )
        return {text_of(key): int(version) for key, version in rows}

    def evidence(self) -> dict[str, list[tuple[int, int]]]:
        """By the key of a note: (version, id of an event that this version was derived from), the oldest first."""
        rows = self._database.read(
            'SELECT note, version, event FROM evidence WHERE "user" = ? '
            'UNION SELECT key, version, event FROM notes WHERE "user" = ? ORDER BY 2, 3',
            (self.number, self.number),
        )
        evidence: dict[str, list[tuple[int, int]]] = {}
        for key, version, event in rows:
            evidence.setdefault(text_of(key), []).append((int(version), int(event)))
        return evidence

    def _decision(self, session: SqlSession) -> tuple[int | None, int]:
        """Whether the user may be stored, and how many decisions on notes there are; others wait until the end."""
        result = session.execute(
            f"SELECT may_store, decisions FROM users WHERE id = ?{self._database.lock}", (self.number,)
        )
        if (row := result.fetchone()) is None:
            if not self.number:
                raise DataError("there is no such user in the memory", field="user")
            raise ForgottenUserError("the user was forgotten: open a new handle to begin anew")
        return row[0], int(row[1])

    def _check_consent(self, session: SqlSession) -> None:
        decided, _ = self._decision(session)
        if decided == 0 or (decided is None and self._consent_required):
            raise ConsentError("the user has not allowed that anything is stored (set_consent)")


def _event(row: Sequence[Any]) -> Event:
    used = None if row[6] is None else json.loads(row[6])
    applied = int(row[4])  # 1: applied; 0 or below: how often that was tried in vain
    return Event(
        int(row[0]), text_of(row[1]), text_of(row[2]), json.loads(row[3]), applied > 0, row[5], used, max(0, -applied)
    )


_NOT_ALLOWED = "the user has not allowed that anything is stored (set_consent)"
_REFUSAL = "SELECT at FROM refusals WHERE name = ?"
_PLACES = 65_536  # of epochs; names share them, so that what stays of the forgotten names nobody


class SqlMemory:
    """A `MemoryStore` over a database; it is opened as `UserMemory` or `PostgresMemory`.

    Args:
        database: opened.
        limits: what is refused.
        consent_required: whether nothing is stored of a user, the name neither, before `set_consent` has allowed it.
    """

    def __init__(self, database: SqlDatabase, limits: MemoryLimits | None, consent_required: bool) -> None:
        self.limits = limits or MemoryLimits()
        self._database, self._consent_required = database, consent_required

    def user(self, name: str, owner: int = 0) -> SqlHandle:
        """The handle of a user, who is entered where there is none of that name, as `MemoryStore.user` says."""
        handle = self.reader(name)
        self._check_owner(handle, owner)
        if not self.may_store(name):
            raise ConsentError(_NOT_ALLOWED)
        if handle.number:
            return handle
        with self._database.transaction() as session:  # what was looked at may have changed meanwhile
            epoch = self._epoch(session, name)
            handle = self._handle(self._entered(session, name), name, epoch)
            self._check_owner(handle, owner)
            if session.execute(_REFUSAL, (self._hash(name),)).fetchone() is not None:
                raise ConsentError(_NOT_ALLOWED)
        return handle

    def _check_owner(self, handle: SqlHandle, owner: int) -> None:
        if owner not in (0, handle.number, -1 - handle.answer_owner.epoch):
            raise ForgottenUserError("the user was forgotten after the round began: what came of it is dropped")

    def may_store(self, name: str) -> bool:
        """Whether anything may be stored of a user, as `MemoryStore.may_store` says."""
        decision = self.consent(name)
        return not self._consent_required if decision is None else decision.store

    def known(self, name: str) -> SqlHandle | None:
        """The handle of a user who is there; None where there is none. Nothing is written."""
        handle = self.reader(name)
        return handle if handle.number else None

    def reader(self, name: str) -> SqlHandle:
        """As `known`, but a handle in which nothing is, and nothing can be written, where there is no such user."""
        self.limits.name(name, "user")
        statement = "SELECT (SELECT id FROM users WHERE name = ?), (SELECT epoch FROM epochs WHERE place = ?)"
        number, epoch = self._database.read(statement, (self._database.word(name), self._place(name)))[0]
        return self._handle(int(number or 0), name, int(epoch or 0))

    def consent(self, name: str) -> Consent | None:
        """What a user has decided; None where no decision is recorded."""
        self.limits.name(name, "user")
        statement = "SELECT may_store, may_train, decided_at FROM users WHERE name = ? AND may_store IS NOT NULL"
        if rows := self._database.read(statement, (self._database.word(name),)):
            return Consent(bool(rows[0][0]), bool(rows[0][1]), rows[0][2])
        rows = self._database.read(_REFUSAL, (self._hash(name),))
        return Consent(False, False, rows[0][0]) if rows else None

    def set_consent(self, name: str, *, store: bool, train: bool) -> Consent:
        """Record what a user has decided, as `MemoryStore.set_consent` says."""
        self.limits.name(name, "user")
        if train and not store:
            raise ConsentError("train: expected store with it: what is not stored cannot be trained on")
        decision = Consent(store, train, time.time())
        with self._database.transaction() as session:
            number = self._entered(session, name)
            if not store and session.execute('SELECT 1 FROM events WHERE "user" = ? LIMIT 1', (number,)).fetchone():
                raise ConsentError("store: something is stored of this user: withdrawal is `forget`")
            session.execute(
                "UPDATE users SET may_store = ?, may_train = ?, decided_at = ? WHERE id = ?",
                (int(store), int(train), decision.at, number),
            )
            if store:
                session.execute("DELETE FROM refusals WHERE name = ?", (self._hash(name),))
        return decision

    def export_user(self, name: str) -> dict[str, Any]:
        """All that is stored of a user, as `MemoryStore.export_user` says."""
        self.limits.name(name, "user")
        with self._database.transaction() as session:
            if (row := self._find(session, name)) is None:
                raise DataError("there is no such user in the memory", field="user")
            return exported(session, row[0], name)

    def import_user(self, data: Any, name: str | None = None) -> SqlHandle:
        """Store what was exported, as `MemoryStore.import_user` says."""
        user = read_exported(data, self.limits, self._database.word)
        name = self.limits.name(user.name if name is None else name, "user")
        with self._database.transaction() as session:
            epoch = self._epoch(session, name)
            consent, decided = user.consent, None
            if (row := self._find(session, name)) is not None:  # a decision alone may be there, and stands
                decided = session.execute("SELECT may_store FROM users WHERE id = ?", row).fetchone()[0]
                if decided is None or session.execute('SELECT 1 FROM events WHERE "user" = ? LIMIT 1', row).fetchone():
                    raise DataError("there is such a user in the memory already; forget them first", field="user")
            refused = session.execute(_REFUSAL, (self._hash(name),)).fetchone() is not None
            allowed = consent.store if consent is not None else not self._consent_required
            if not (allowed and not refused if decided is None else decided):
                raise ConsentError(_NOT_ALLOWED)
            number = self._entered(session, name)
            if consent is not None and decided is None:
                session.execute(
                    "UPDATE users SET may_store = 1, may_train = ?, decided_at = ? WHERE id = ?",
                    (int(consent.train), consent.at, number),
                )
            import_rows(session, number, user)
        return self._handle(number, name, epoch)

    def forget(self, name: str) -> bool:
        """Remove a user with all that was stored, as `MemoryStore.forget` says."""
        self.limits.name(name, "user")
        with self._database.transaction() as session:
            epoch = self._epoch(session, name)
            session.execute("UPDATE epochs SET epoch = ? WHERE place = ?", (epoch + 1, self._place(name)))
            row = self._find(session, name)
            if row is not None:
                session.execute(MARK_UNFINISHED)
                session.execute(
                    "INSERT INTO refusals (name, at) SELECT ?, decided_at FROM users WHERE id = ? AND may_store = 0 "
                    "ON CONFLICT DO NOTHING",
                    (self._hash(name), *row),
                )
                for table in ("evidence", "versions", "notes", "events"):
                    session.execute(f'DELETE FROM {table} WHERE "user" = ?', row)
                session.execute("DELETE FROM users WHERE id = ?", row)
        if row is not None or self._database.read("SELECT 1 FROM unfinished"):
            self._database.scrub()
        return row is not None

    def close(self) -> None:
        """Let go of the database."""
        self._database.close()

    def _handle(self, number: int, name: str, epoch: int) -> SqlHandle:
        owner = AnswerOwner(self._hash(name).hex(), f"{self._identity}/{self._place(name)}", epoch)
        return SqlHandle(self._database, self.limits, number, self._consent_required, owner)

    @cached_property
    def _key(self) -> bytes:
        return bytes(self._database.read("SELECT key FROM secret")[0][0])

    @cached_property
    def _identity(self) -> str:
        """Of this memory, whoever opens it, for those who keep answers of several."""
        return hmac.digest(self._key, b"memory", "sha256").hex()[:16]

    def _hash(self, name: str) -> bytes:
        """A keyed hash of a name: what may stay of it."""
        return hmac.digest(self._key, b"user " + name.encode(), "sha256")

    def _place(self, name: str) -> int:
        """Where a user's epoch is counted."""
        return int.from_bytes(self._hash(name)[:8]) % _PLACES

    def _epoch(self, session: SqlSession, name: str) -> int:
        """The user's epoch, which nobody else changes until the transaction ends: who forgets or enters takes turns."""
        place = (self._place(name),)
        session.execute("INSERT INTO epochs (place, epoch) VALUES (?, 0) ON CONFLICT DO NOTHING", place)
        (epoch,) = session.execute(f"SELECT epoch FROM epochs WHERE place = ?{self._database.lock}", place).fetchone()
        return int(epoch)

    def _find(self, session: SqlSession, name: str) -> tuple[int] | None:
        """The user's row, which nobody else changes until the transaction ends."""
        word = self._database.word(name)
        return session.execute(f"SELECT id FROM users WHERE name = ?{self._database.lock}", (word,)).fetchone()

    def _entered(self, session: SqlSession, name: str) -> int:
        """The user's number, entered where there is none; whoever else enters or forgets the name waits or is done."""
        while (row := self._find(session, name)) is None:
            session.execute("INSERT INTO users (name) VALUES (?) ON CONFLICT DO NOTHING", (self._database.word(name),))
        return int(row[0])
