"""The memory of users over a database: names, decisions, and how a user is forgotten.

SQLite and PostgreSQL both read the statements.
"""

from __future__ import annotations

import hmac
import time
from functools import cached_property

from finegrained_rlhf.core.generation.wrappers import AnswerOwner
from finegrained_rlhf.core.sqlite import MARK_UNFINISHED
from finegrained_rlhf.personalization.store.handle import SqlDatabase, SqlHandle, SqlSession
from finegrained_rlhf.personalization.store.records import Consent, ConsentError, ForgottenUserError, MemoryLimits

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
                for table in ("evidence", "notes", "events"):
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
