"""The memory of users over a database: names, decisions, and how a user is forgotten.

Knows users and statements that SQLite and PostgreSQL both read. Does not know which of them runs them.
"""

from __future__ import annotations

import time

from finegrained_rlhf.personalization.store.handle import SqlDatabase, SqlHandle, SqlSession
from finegrained_rlhf.personalization.store.records import Consent, ConsentError, MemoryLimits


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

    def user(self, name: str) -> SqlHandle:
        """The handle of a user, who is entered where there is none of that name, as `MemoryStore.user` says."""
        if not self.may_store(name):
            raise ConsentError("the user has not allowed that anything is stored (set_consent)")
        if (found := self.known(name)) is not None:
            return found
        with self._database.transaction() as session:
            return self._handle(self._entered(session, name))

    def may_store(self, name: str) -> bool:
        """Whether anything may be stored of a user, as `MemoryStore.may_store` says."""
        decision = self.consent(name)
        return not self._consent_required if decision is None else decision.store

    def known(self, name: str) -> SqlHandle | None:
        """The handle of a user who is there; None where there is none. Nothing is written."""
        self.limits.name(name, "user")
        found = self._database.read("SELECT id FROM users WHERE name = ?", (self._database.word(name),))
        return self._handle(int(found[0][0])) if found else None

    def reader(self, name: str) -> SqlHandle:
        """As `known`, but a handle in which nothing is, and nothing can be written, where there is no such user."""
        return self.known(name) or self._handle(0)

    def consent(self, name: str) -> Consent | None:
        """What a user has decided; None where no decision is recorded."""
        self.limits.name(name, "user")
        statement = "SELECT may_store, may_train, decided_at FROM users WHERE name = ?"
        found = self._database.read(statement, (self._database.word(name),))
        return Consent(bool(found[0][0]), bool(found[0][1]), found[0][2]) if found and found[0][0] is not None else None

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
        return decision

    def forget(self, name: str) -> bool:
        """Remove a user with all that was stored, as `MemoryStore.forget` says."""
        self.limits.name(name, "user")
        with self._database.transaction() as session:
            row = self._find(session, name)
            if row is not None:
                session.execute("INSERT INTO unfinished DEFAULT VALUES")
                for table in ("evidence", "notes", "events"):
                    session.execute(f'DELETE FROM {table} WHERE "user" = ?', row)
                session.execute("DELETE FROM users WHERE id = ?", row)
        if row is not None or self._database.read("SELECT 1 FROM unfinished"):
            self._database.scrub()
        return row is not None

    def close(self) -> None:
        """Let go of the database."""
        self._database.close()

    def _handle(self, number: int) -> SqlHandle:
        return SqlHandle(self._database, self.limits, number, self._consent_required)

    def _find(self, session: SqlSession, name: str) -> tuple[int] | None:
        """The user's row, which nobody else changes until the transaction ends."""
        word = self._database.word(name)
        return session.execute(f"SELECT id FROM users WHERE name = ?{self._database.lock}", (word,)).fetchone()

    def _entered(self, session: SqlSession, name: str) -> int:
        """The user's number, entered where there is none; whoever else enters or forgets the name waits or is done."""
        while (row := self._find(session, name)) is None:
            session.execute("INSERT INTO users (name) VALUES (?) ON CONFLICT DO NOTHING", (self._database.word(name),))
        return int(row[0])
