"""SQLite files in WAL mode that several processes use: statements wait, and deleted content leaves the disk."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

UNFINISHED = "CREATE TABLE IF NOT EXISTS unfinished (id INTEGER PRIMARY KEY AUTOINCREMENT)"
"""Whoever deletes enters a row in the same transaction; it goes when `overwrite_deleted` is done."""
MARK_UNFINISHED = "INSERT INTO unfinished DEFAULT VALUES"
_PAUSE_S = 0.01


def execute_patiently(connection: sqlite3.Connection, statement: str, patience_s: float) -> None:
    """Execute a statement that does not wait for others by itself.

    Raises:
        sqlite3.Error: it fails, or others kept the file locked for longer.
    """
    until = time.monotonic() + patience_s
    while True:
        try:
            connection.execute(statement).fetchone()
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(_PAUSE_S)


def overwrite_deleted(path: Path, patience_s: float) -> None:
    """Leave nothing of deleted content in a file or its log: rebuild the one, empty the other.

    It has a connection of its own. While a reader is in the way it holds no lock, so that others read and write.

    Args:
        path: of the file.
        patience_s: seconds to wait for other processes.

    Raises:
        sqlite3.Error: others kept the file busy for longer. The rows stay in `unfinished`.
    """
    until = time.monotonic() + patience_s
    with closing(sqlite3.connect(path, timeout=patience_s, isolation_level=None)) as connection:
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("PRAGMA temp_store = MEMORY")  # VACUUM leaves no copy in a temporary directory
        (latest,) = connection.execute("SELECT MAX(id) FROM unfinished").fetchone()
        if latest is None:  # somebody else has done it
            return
        execute_patiently(connection, "VACUUM", patience_s)
        connection.execute("PRAGMA busy_timeout = 0")  # a checkpoint that waits keeps writers out
        while connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
            if time.monotonic() > until:
                raise sqlite3.OperationalError("other processes keep reading")
            time.sleep(_PAUSE_S)
        connection.execute(f"PRAGMA busy_timeout = {round(patience_s * 1000)}")
        connection.execute("DELETE FROM unfinished WHERE id <= ?", (latest,))
