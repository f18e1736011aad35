"""The memory of users in a PostgreSQL database (13 or newer), for services whose processes run on several machines.

psycopg is imported where it is used.
"""

from __future__ import annotations

import os
import re
import secrets
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.personalization.store.protocol import MemoryLimits, StoreError
from finegrained_rlhf.personalization.store.sql import SqlMemory

_MARK = "finegrained-rlhf: memory of users, version 1"
# Names and keys are BYTEA: compared byte by byte under any collation, and a text may hold any character. ANALYZE keeps
# samples of columns in a catalogue, where `forget` would not reach them: it is told to keep none of these.
_SCHEMA = """
CREATE TABLE users (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name BYTEA NOT NULL UNIQUE,
    may_store SMALLINT, may_train SMALLINT, decided_at DOUBLE PRECISION
);
CREATE TABLE events (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "user" BIGINT NOT NULL REFERENCES users (id),
    key BYTEA NOT NULL, kind BYTEA NOT NULL, body TEXT NOT NULL, applied SMALLINT NOT NULL DEFAULT 0,
    at DOUBLE PRECISION, used TEXT, UNIQUE ("user", key)
);
CREATE TABLE notes (
    "user" BIGINT NOT NULL REFERENCES users (id), key BYTEA NOT NULL, body TEXT NOT NULL, vector BYTEA,
    version BIGINT NOT NULL, event BIGINT NOT NULL, PRIMARY KEY ("user", key)
);
CREATE TABLE evidence (
    "user" BIGINT NOT NULL REFERENCES users (id), note BYTEA NOT NULL, version BIGINT NOT NULL, event BIGINT NOT NULL,
    PRIMARY KEY ("user", note, version, event)
);
CREATE TABLE unfinished (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, deleted_by XID NOT NULL DEFAULT pg_current_xact_id()::xid
);
ALTER TABLE users ALTER name SET STATISTICS 0;
ALTER TABLE events ALTER key SET STATISTICS 0, ALTER kind SET STATISTICS 0, ALTER body SET STATISTICS 0,
    ALTER used SET STATISTICS 0;
ALTER TABLE notes ALTER key SET STATISTICS 0, ALTER body SET STATISTICS 0, ALTER vector SET STATISTICS 0;
ALTER TABLE evidence ALTER note SET STATISTICS 0
"""
_OF_HASHES = """
CREATE TABLE secret (id SMALLINT PRIMARY KEY, key BYTEA NOT NULL);
CREATE TABLE epochs (place INTEGER PRIMARY KEY, epoch BIGINT NOT NULL);
CREATE TABLE refusals (name BYTEA PRIMARY KEY, at DOUBLE PRECISION NOT NULL);
ALTER TABLE refusals ALTER name SET STATISTICS 0
"""  # what schemas of before epochs lack
_OF_DECISIONS = """
CREATE TABLE versions (
    "user" BIGINT NOT NULL REFERENCES users (id), note BYTEA NOT NULL, version BIGINT NOT NULL, body TEXT NOT NULL,
    event BIGINT NOT NULL, state SMALLINT NOT NULL, valid_from DOUBLE PRECISION, valid_to DOUBLE PRECISION,
    removed BIGINT NOT NULL, PRIMARY KEY ("user", note, version)
);
ALTER TABLE versions ALTER note SET STATISTICS 0, ALTER body SET STATISTICS 0;
ALTER TABLE users ADD COLUMN decisions BIGINT NOT NULL DEFAULT 0;
ALTER TABLE notes ADD COLUMN state SMALLINT NOT NULL DEFAULT 0, ADD COLUMN valid_from DOUBLE PRECISION,
    ADD COLUMN valid_to DOUBLE PRECISION, ADD COLUMN decided BIGINT NOT NULL DEFAULT 0
"""  # what schemas of before decisions on notes lack
_STEPS = {
    _SCHEMA: {"users", "events", "notes", "evidence", "unfinished"},
    _OF_HASHES: {"secret", "epochs", "refusals"},
    _OF_DECISIONS: {"versions"},
}  # which tables each makes
_TABLES = set().union(*_STEPS.values())
_STEP_S = 0.05  # others queue behind a VACUUM that waits for a table: it waits no longer at once
# Rows that a transaction still sees are kept by VACUUM FULL: those of sessions here, of standbys that report what they
# read, and of transactions that were prepared.
_SEES_DELETED = """
SELECT 1 FROM unfinished, (
    SELECT greatest(age(backend_xmin), age(backend_xid)) AS held FROM pg_stat_activity
        WHERE pid <> pg_backend_pid() AND (datname = current_database() OR datname IS NULL)
    UNION ALL SELECT age(xmin) FROM pg_replication_slots
    UNION ALL SELECT age(transaction) FROM pg_prepared_xacts WHERE database = current_database()
) AS others WHERE held >= age(deleted_by) LIMIT 1
"""


class PostgresMemory(SqlMemory):
    """A schema of a PostgreSQL database in which users' events and notes are kept: a `MemoryStore`.

    Writes for one user wait for each other; those for different users do not. When `forget` returns, the tables and
    their indexes are rewritten without the user (`VACUUM FULL`, which locks each table while it lasts). What the server
    keeps beside them is beyond it: the write-ahead log until its segments are written over, archives of it, standbys,
    backups, and the server's own log where it is told to log statements with their values. Whether what was
    acknowledged survives a loss of power is the server's setting (`synchronous_commit`). Vectors are kept as bytes and
    compared in this process: the extension pgvector is neither needed nor used.

    Args:
        where: of the database, as libpq reads it: `postgresql://host/name`, `dbname=name`. Keep passwords in
            `~/.pgpass` or `PGPASSWORD`.
        limits: what is refused.
        schema: that holds the tables; it is made where there is none. Its tables must be this role's own.
        patience_s: seconds to wait for a connection, or for other sessions.
        consent_required: as for `UserMemory`.

    Raises:
        StoreError: no connection, a schema that is another program's or another role's, or a database that is not in
            UTF-8.
        ConfigError: psycopg is not installed, or a name that no schema should have.
    """

    def __init__(
        self,
        where: str,
        limits: MemoryLimits | None = None,
        schema: str = "user_memory",
        patience_s: float = 60.0,
        consent_required: bool = False,
    ) -> None:
        super().__init__(PostgresDatabase(where, schema, patience_s), limits, consent_required)
        self._schema = schema

    def backup(self, file: str | Path) -> NoReturn:
        """Refuse: a server is copied by its own tools.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(f"a PostgreSQL memory is copied by pg_dump --schema={self._schema}, not into {file}")


class PostgresDatabase:
    """A connection to the server; threads take turns on it, and a forked process opens its own.

    Args:
        where: of the database.
        schema: that holds the tables.
        patience_s: seconds to wait.

    Raises:
        StoreError: as for `PostgresMemory`.
        ConfigError: as for `PostgresMemory`.
    """

    lock = " FOR UPDATE"

    def __init__(self, where: str, schema: str, patience_s: float) -> None:
        if re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema) is None:
            raise ConfigError(f"schema: expected small letters, digits and underscores, got {schema!r}")
        self.identity = uuid.uuid4().hex
        self._psycopg = import_psycopg()
        self._where, self._schema, self._patience_s = where, schema, patience_s
        self._lock = threading.RLock()
        self._connection: Any = None
        self._of_parent: Any = None  # kept, since closing it here would end it there
        self._process = -1
        with self._errors():
            self._open()
        if self.read("SELECT 1 FROM unfinished"):
            with suppress(StoreError):  # others are busy: the next one who opens it does it
                self.scrub(0.0)

    def word(self, text: str) -> bytes:
        """A name or key in UTF-8."""
        return text.encode()

    @contextmanager
    def transaction(self) -> Iterator[_Session]:
        """All that is done within, or nothing.

        Raises:
            StoreError: no connection, or others held a row longer than the patience. A connection that is lost while a
                transaction ends may have written all of it: the same event again is safe.
        """
        with self._lock, self._errors():
            connection = self._open()
            with connection.transaction():
                yield _Session(connection)

    def read(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of one query.

        Raises:
            StoreError: no connection, or the query fails.
        """
        with self._lock, self._errors():
            return _Session(self._open()).execute(statement, values).fetchall()

    def scrub(self, patience_s: float | None = None) -> None:
        """Rewrite the tables without their deleted rows, as soon as no other transaction can still see these.

        Args:
            patience_s: seconds to wait for other sessions; None: those of this connection.

        Raises:
            StoreError: others read, or held a table, for longer. The rows are deleted, and what is left of them in the
                server's files goes at the next opening or the next call.
        """
        patience_s = self._patience_s if patience_s is None else patience_s
        until = time.monotonic() + patience_s
        try:
            with self._errors(), closing(self._connect()) as connection:
                marks = [row[0] for row in connection.execute("SELECT id FROM unfinished").fetchall()]
                while connection.execute(_SEES_DELETED).fetchone():
                    _pause(until, "other sessions can still read it")
                connection.execute("SELECT set_config('lock_timeout', %s, false)", (f"{round(_STEP_S * 1000)}ms",))
                for table in ("evidence", "versions", "notes", "events", "users"):
                    self._rewrite(connection, table, until)
                connection.execute("DELETE FROM unfinished WHERE id = ANY (%s)", (marks,))
        except StoreError as error:
            raise StoreError(f"deleted content is not yet overwritten ({error}); try again") from None

    def _rewrite(self, connection: Any, table: str, until: float) -> None:
        """`VACUUM (FULL)` as soon as no other session holds the table."""
        while True:
            try:
                connection.execute(f"VACUUM (FULL) {table}")
                return
            except self._psycopg.errors.LockNotAvailable:
                _pause(until, "other sessions hold a table")

    def close(self) -> None:
        """Let go of the connection."""
        with self._lock:
            if self._connection is not None and self._process == os.getpid():
                self._connection.close()
            self._connection = None

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Psycopg's errors in one line, without the statement's values."""
        try:
            yield
        except self._psycopg.Error as error:
            message = getattr(getattr(error, "diag", None), "message_primary", None) or str(error)
            raise StoreError(f"schema {self._schema}: {' '.join(message.split())}") from None

    def _open(self) -> Any:
        """The connection of this process; a new one where the server has ended the last."""
        if self._connection is not None and self._process != os.getpid():
            self._of_parent, self._connection = self._connection, None
        if self._connection is None or self._connection.closed:
            self._connection, self._process = self._connect(), os.getpid()
        return self._connection

    def _connect(self) -> Any:
        wait = max(1, round(self._patience_s))
        connection = self._psycopg.connect(self._where, autocommit=True, connect_timeout=wait)
        try:
            (encoding,) = connection.execute("SHOW server_encoding").fetchone()
            if encoding != "UTF8":
                raise StoreError(f"expected a database in UTF8, got {encoding}")
            for name, value in (
                ("client_encoding", "UTF8"),
                ("search_path", self._schema),
                ("lock_timeout", f"{max(1, round(self._patience_s * 1000))}ms"),
            ):
                connection.execute("SELECT set_config(%s, %s, false)", (name, value))
            with connection.transaction():
                self._make(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _make(self, connection: Any) -> None:
        """The schema with its tables, or what is there looked at."""
        connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (_MARK,))  # makers take turns
        space = connection.execute(
            "SELECT oid, obj_description(oid, 'pg_namespace') FROM pg_namespace WHERE nspname = %s", (self._schema,)
        ).fetchone()
        if space is None:
            connection.execute(f"CREATE SCHEMA {self._schema}")
            connection.execute(f"COMMENT ON SCHEMA {self._schema} IS '{_MARK}'")
            self._make_tables(connection, set())
            return
        tables = connection.execute(
            "SELECT relname, pg_has_role(relowner, 'USAGE') FROM pg_class WHERE relnamespace = %s AND relkind = 'r'",
            (space[0],),
        ).fetchall()
        names = {name for name, _ in tables}
        partly = [step for step in _STEPS.values() if names & step and step - names]
        if space[1] != _MARK or names - _TABLES or partly or not names:
            raise StoreError(f"schema {self._schema}: it is another program's, or another version's")
        if not all(own for _, own in tables):
            raise StoreError(f"schema {self._schema}: its tables are another role's, and only theirs can rewrite them")
        if names != _TABLES:
            self._make_tables(connection, names)

    def _make_tables(self, connection: Any, there: set[str]) -> None:
        for statements, tables in _STEPS.items():
            for statement in () if tables <= there else statements.split(";\n"):
                connection.execute(statement)
        key = (secrets.token_bytes(32),)
        connection.execute("INSERT INTO secret (id, key) VALUES (1, %s) ON CONFLICT DO NOTHING", key)


class _Session:
    """An open transaction, with `?` for values."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Any:
        """Run a statement."""
        return self._connection.execute(statement.replace("?", "%s"), tuple(values))


def _pause(until: float, otherwise: str) -> None:
    if time.monotonic() > until:
        raise StoreError(otherwise)
    time.sleep(0.01)


def import_psycopg() -> ModuleType:
    """The module psycopg.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import psycopg
    except ImportError:
        raise ConfigError("PostgreSQL needs psycopg: pip install -e '.[postgres]' in a checkout") from None
    return psycopg
