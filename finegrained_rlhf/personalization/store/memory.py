"""The memory of users in one SQLite file: its tables, its connection, and how deleted content leaves the disk.

SQLite runs in WAL mode.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from stat import S_IMODE
from typing import Any

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import atomic_path
from finegrained_rlhf.core.sqlite import UNFINISHED, execute_patiently, overwrite_deleted
from finegrained_rlhf.personalization.store.protocol import MemoryLimits, StoreError
from finegrained_rlhf.personalization.store.sql import SqlMemory

_APPLICATION = 0x46475248  # "FGRH": another program's database is refused
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS users (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY AUTOINCREMENT, user INTEGER NOT NULL REFERENCES users (id), key TEXT NOT NULL,
    kind TEXT NOT NULL, body TEXT NOT NULL, applied INTEGER NOT NULL DEFAULT 0, UNIQUE (user, key)
);
CREATE TABLE IF NOT EXISTS notes (
    user INTEGER NOT NULL REFERENCES users (id), key TEXT NOT NULL, body TEXT NOT NULL, vector BLOB,
    version INTEGER NOT NULL, event INTEGER NOT NULL, PRIMARY KEY (user, key)
);
{UNFINISHED};
CREATE TABLE IF NOT EXISTS evidence (
    user INTEGER NOT NULL REFERENCES users (id), note TEXT NOT NULL, version INTEGER NOT NULL, event INTEGER NOT NULL,
    PRIMARY KEY (user, note, version, event)
) WITHOUT ROWID;
ALTER TABLE users ADD COLUMN may_store INTEGER;
ALTER TABLE users ADD COLUMN may_train INTEGER;
ALTER TABLE users ADD COLUMN decided_at REAL;
ALTER TABLE events ADD COLUMN at REAL;
ALTER TABLE events ADD COLUMN used TEXT
"""  # from CREATE TABLE evidence on: what files of version 0.2 lack
_OF_HASHES = """
CREATE TABLE secret (id INTEGER PRIMARY KEY, key BLOB NOT NULL);
CREATE TABLE epochs (place INTEGER PRIMARY KEY, epoch INTEGER NOT NULL);
CREATE TABLE refusals (name BLOB PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID
"""  # what files of before epochs lack
_OF_DECISIONS = """
CREATE TABLE versions (
    user INTEGER NOT NULL REFERENCES users (id), note TEXT NOT NULL, version INTEGER NOT NULL, body TEXT NOT NULL,
    event INTEGER NOT NULL, state INTEGER NOT NULL, valid_from REAL, valid_to REAL, removed INTEGER NOT NULL,
    PRIMARY KEY (user, note, version)
) WITHOUT ROWID;
ALTER TABLE users ADD COLUMN decisions INTEGER NOT NULL DEFAULT 0;
ALTER TABLE notes ADD COLUMN state INTEGER NOT NULL DEFAULT 0;
ALTER TABLE notes ADD COLUMN valid_from REAL;
ALTER TABLE notes ADD COLUMN valid_to REAL;
ALTER TABLE notes ADD COLUMN decided INTEGER NOT NULL DEFAULT 0
"""  # what files of before decisions on notes lack
_STEPS = {"evidence": _SCHEMA, "refusals": _OF_HASHES, "versions": _OF_DECISIONS}
# by a table that is there after it; all in one transaction, after which `user_version` says how many
_TABLES = {"users", "events", "notes", "unfinished", "evidence", "secret", "epochs", "refusals", "versions"}


class Database:
    """A connection to the file; threads take turns on it, and a forked process opens its own.

    Deleted content is overwritten (`secure_delete`). What a kill leaves half-removed is removed at the next opening. A
    file from before evidence, times and consents, epochs and refusals, or decisions on notes were kept gets tables and
    columns for them.

    Args:
        path: the file; its directory is made. Not on a network file system.
        durable: whether a transaction survives a loss of power, for a flush to disk each; it survives a kill anyhow.
        patience_s: seconds to wait for other processes before giving up.

    Raises:
        StoreError: the file is another program's, damaged, or cannot be written.
    """

    lock = ""  # a transaction has the file to itself

    def __init__(self, path: str | Path, durable: bool, patience_s: float) -> None:
        if str(path) == ":memory:":
            raise StoreError("expected a file, which forget rebuilds, got ':memory:'")
        self.identity = uuid.uuid4().hex
        self.path, self._durable, self._patience_s = Path(path), durable, patience_s
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._of_parent: sqlite3.Connection | None = None  # kept, since closing it here would close it there
        self._process = -1
        with self._lock:
            self._open()
            if self._rows("SELECT 1 FROM unfinished"):
                with suppress(StoreError):  # others are busy: the next one who opens the file does it
                    self.scrub(0.0)

    def _open(self) -> sqlite3.Connection:
        """The connection of this process."""
        if self._connection is not None and self._process != os.getpid():
            self._of_parent, self._connection = self._connection, None
        if self._connection is None:
            there = self.path.exists()
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._connection, self._process = self._connect(), os.getpid()
            except (OSError, sqlite3.Error) as error:
                made = "" if there else ", or to make one"
                raise StoreError(f"{self.path}: expected the file of a memory{made}: {error}") from None
        return self._connection

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=self._patience_s, isolation_level=None, check_same_thread=False)
        found = connection.execute("SELECT type, name FROM sqlite_master WHERE type <> 'index'")
        tables = {name if kind == "table" else f"{kind} {name}" for kind, name in found}  # a trigger is none
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()  # 0 before versions were kept
        tables -= {"sqlite_sequence"}
        if tables - _TABLES or version > len(_STEPS) or (tables and application != _APPLICATION):
            connection.close()
            raise sqlite3.DatabaseError("it is another program's database, or a later version's")
        execute_patiently(connection, "PRAGMA journal_mode = WAL", self._patience_s)
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute(f"PRAGMA synchronous = {'FULL' if self._durable else 'NORMAL'}")
        if tables != _TABLES:
            connection.execute("BEGIN IMMEDIATE")  # another process may have made them meanwhile
            for table, step in _STEPS.items():
                there = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone()
                for statement in () if there else step.split(";\n"):
                    connection.execute(statement)
            connection.execute("INSERT OR IGNORE INTO secret (id, key) VALUES (1, ?)", (secrets.token_bytes(32),))
            connection.execute(f"PRAGMA application_id = {_APPLICATION}")
            connection.execute(f"PRAGMA user_version = {len(_STEPS)}")
            connection.execute("COMMIT")
        return connection

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All that is done within, or nothing. Processes take turns.

        Raises:
            StoreError: the file cannot be written, or others held it longer than the patience.
        """
        with self._lock:
            connection = self._open()
            try:
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield connection
                    connection.execute("COMMIT")
                except BaseException:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise StoreError(f"{self.path}: {error}") from None

    def word(self, text: str) -> str:
        """A name or key as it is: SQLite compares bytes."""
        return text

    def read(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of one query.

        Raises:
            StoreError: the file cannot be read.
        """
        with self._lock:
            self._open()
            return self._rows(statement, values)

    def _rows(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        assert self._connection is not None
        try:
            return self._connection.execute(statement, tuple(values)).fetchall()
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: {error}") from None

    def scrub(self, patience_s: float | None = None) -> None:
        """Leave nothing of deleted content in the file or its log: rebuild the one, empty the other.

        Whoever deletes enters a row in `unfinished` in the same transaction; it goes when this is done. Others are
        served meanwhile; who writes waits while the file is rebuilt, not while a reader is in the way.

        Args:
            patience_s: seconds to wait for other processes; None: those of this connection.

        Raises:
            StoreError: other processes kept the file busy for longer. The content is deleted, and what is left of it in
                the files goes at the next opening or the next call.
        """
        try:
            overwrite_deleted(self.path, self._patience_s if patience_s is None else patience_s)
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: deleted content is not yet overwritten ({error}); try again") from None

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            if self._connection is not None and self._process == os.getpid():
                self._connection.close()
            self._connection = None


class UserMemory(SqlMemory):
    """A file in which users' events and notes are kept: a `MemoryStore`. Many processes and threads may write at once.

    When `forget` returns, the file and its log hold nothing of the user. Copies of the files, and blocks that the file
    system or the device has set free, are beyond it.

    Args:
        path: the SQLite file; it is made where there is none.
        limits: what is refused.
        durable: whether what was acknowledged survives a loss of power (a flush to disk for each write); it survives a
            kill of the process in any case.
        patience_s: seconds to wait for other processes.
        consent_required: whether nothing is stored of a user, the name neither, before `set_consent` has allowed it.
            By default users without a decision are stored: the application has asked them elsewhere.

    Raises:
        StoreError: it is another program's file, is damaged, or cannot be written.
    """

    def __init__(
        self,
        path: str | Path,
        limits: MemoryLimits | None = None,
        durable: bool = True,
        patience_s: float = 60.0,
        consent_required: bool = False,
    ) -> None:
        super().__init__(Database(path, durable, patience_s), limits, consent_required)
        self._path, self._patience_s = Path(path), patience_s

    def backup(self, file: str | Path) -> None:
        """Copy the whole memory, as it is at one time, into a new file that `UserMemory` opens. Others write meanwhile.

        The file is whole or absent, and as readable as this one. `forget` does not reach it.

        Args:
            file: that is made.

        Raises:
            DataError: it is there already.
            StoreError: the memory cannot be read, or the file not written.
        """
        target = Path(file)
        if target.exists():
            raise DataError("it is there already; expected the name of a new file", file=target)
        where = f"{self._path.absolute().as_uri()}?mode=rw"  # a memory that is gone is not made anew
        try:
            with (
                atomic_path(target, S_IMODE(self._path.stat().st_mode)) as temporary,
                closing(sqlite3.connect(where, timeout=self._patience_s, uri=True)) as memory,
                closing(sqlite3.connect(temporary)) as copy,
            ):
                memory.backup(copy)  # in one step, of one state: who writes meanwhile writes to the log
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"{target}: the memory could not be copied: {error}") from None
