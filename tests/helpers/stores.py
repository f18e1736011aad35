"""The stores of user memory, each as a test needs it: opened again, read from outside, searched for traces."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from servers import serving

from finegrained_rlhf.personalization.store.memory import UserMemory
from finegrained_rlhf.personalization.store.postgres import PostgresMemory
from finegrained_rlhf.personalization.store.protocol import MemoryStore

_NOBODY = 65534  # the server refuses to run as root
_SCHEMAS = count()


class SqliteStore:
    """A file."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.named = (str(directory / "users.db"), "")

    def open(self, **keys: Any) -> MemoryStore:
        """The store, opened once more."""
        return UserMemory(self.directory / "users.db", **{"durable": False, **keys})

    def traces(self, text: str) -> list[str]:
        """The files in which a text is, in UTF-8 or UTF-16."""
        words = [text.encode(), text.encode("utf-16-le")]
        files = sorted(self.directory.iterdir())
        return [file.name for file in files if any(word in file.read_bytes() for word in words)]

    def settle(self) -> None:
        """Nothing waits to be written."""

    def drop(self) -> None:
        """The directory is the test's."""

    @contextmanager
    def reader(self) -> Iterator[None]:
        """Another program, which reads and goes on seeing what it saw."""
        connection = sqlite3.connect(self.directory / "users.db", isolation_level=None)
        connection.execute("BEGIN")
        connection.execute("SELECT COUNT(*) FROM events").fetchone()
        yield
        connection.close()


class PostgresStore:
    """A schema of its own on a server."""

    def __init__(self, where: str, data: Path) -> None:
        self.where, self.schema, self._data = where, f"memory_{next(_SCHEMAS)}", data
        self.named = (where, self.schema)

    def open(self, **keys: Any) -> MemoryStore:
        """The store, opened once more."""
        return PostgresMemory(self.where, **{"schema": self.schema, **keys})

    def traces(self, text: str) -> list[str]:
        """The server's files in which a text is, but the write-ahead log, which keeps it."""
        files = [path for path in self._data.rglob("*") if path.is_file() and "pg_wal" not in path.parts]
        return [str(file.relative_to(self._data)) for file in files if text.encode() in file.read_bytes()]

    def settle(self) -> None:
        """What the server holds in memory is written, and samples of all columns are taken."""
        self.run("CHECKPOINT", "ANALYZE")

    def drop(self) -> None:
        """Remove the schema from the server, which other tests use too."""
        self.run(f"DROP SCHEMA IF EXISTS {self.schema} CASCADE")

    def run(self, *statements: str) -> None:
        """Statements of an administrator."""
        import psycopg

        with psycopg.connect(self.where, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    @contextmanager
    def reader(self) -> Iterator[None]:
        """Another program, which reads and goes on seeing what it saw."""
        import psycopg

        with psycopg.connect(self.where) as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            connection.execute(f"SELECT COUNT(*) FROM {self.schema}.events").fetchone()
            yield


Store = SqliteStore | PostgresStore


@contextmanager
def postgres_server() -> Iterator[tuple[str, Path]]:
    """A server of its own behind a socket in a new directory: where it is, and its data.

    The programs are those in POSTGRES_BIN or beside `postgres` on the path; without any, the test is skipped.
    """
    pytest.importorskip("psycopg", reason="psycopg is not installed: pip install -e '.[postgres]'")
    found = shutil.which("postgres", path=os.environ.get("POSTGRES_BIN"))
    if found is None:
        pytest.skip("no postgres on the path, and POSTGRES_BIN names no directory that has it")
    programs = Path(found).resolve().parent
    directory = Path(tempfile.mkdtemp(prefix="pg", dir="/tmp"))  # a socket's path is short, and others may enter
    as_user = []
    if os.geteuid() == 0:
        os.chown(directory, _NOBODY, _NOBODY)
        as_user = ["setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"]
    data = directory / "data"
    make = [*as_user, str(programs / "initdb"), "-D", str(data), "-U", "memory", "-A", "trust", "-E", "UTF8"]
    where = f"host={directory} user=memory dbname=postgres"
    serve = [*as_user, str(programs / "postgres"), "-D", str(data), "-k", str(directory), "-h", "", "-F"]
    try:
        subprocess.run([*make, "--no-locale", "--no-sync"], check=True, capture_output=True)
        with serving(serve, directory, lambda: _ask(where), 60, ended_by=signal.SIGINT):
            yield where, data
    finally:
        shutil.rmtree(directory)


def _ask(where: str) -> None:
    import psycopg

    try:
        psycopg.connect(where).close()
    except psycopg.OperationalError as error:
        raise ConnectionError(str(error)) from None
