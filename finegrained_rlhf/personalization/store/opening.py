"""A memory by the name that a configuration gives it: a file, or a database on a server."""

from __future__ import annotations

from pathlib import Path

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.personalization.store.memory import UserMemory
from finegrained_rlhf.personalization.store.postgres import PostgresMemory
from finegrained_rlhf.personalization.store.protocol import MemoryStore

_SERVERS = ("postgresql://", "postgres://")


def open_memory(where: str) -> MemoryStore:
    """Open a memory that is there.

    Args:
        where: the SQLite file of a `UserMemory`, or `postgresql://…` of a `PostgresMemory` in its usual schema.

    Raises:
        DataError: there is no such file.
        StoreError: it cannot be opened.
        ConfigError: psycopg is not installed.
    """
    if where.startswith(_SERVERS):
        return PostgresMemory(where)
    if not Path(where).is_file():
        what = "is a directory" if Path(where).exists() else "no such file"
        raise DataError(f"{what}; expected the file of a memory", file=where)
    return UserMemory(where)
