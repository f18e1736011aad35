"""A database as the store uses it, which SQLite and PostgreSQL both are."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol


class SqlSession(Protocol):
    """An open transaction."""

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> Any:
        """Run a statement, with `?` for values; what it gives has `fetchone`, `fetchall` and `rowcount`."""
        ...


class SqlDatabase(Protocol):
    """A database as the store uses it.

    Attributes:
        identity: of this opening; unlike any other's.
        lock: what a query ends with whose row nobody else may change until the transaction ends.
    """

    identity: str
    lock: str

    def word(self, text: str) -> Any:
        """A name or key as its column keeps it: compared byte by byte."""
        ...

    def transaction(self) -> AbstractContextManager[SqlSession]:
        """All that is done within, or nothing.

        Raises:
            StoreError: the database cannot be written, or others held it longer than the patience.
        """
        ...

    def read(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of one query.

        Raises:
            StoreError: the database cannot be read.
        """
        ...

    def scrub(self) -> None:
        """Leave nothing of deleted content where the database keeps its tables, and empty `unfinished`.

        Raises:
            StoreError: others kept the database busy: the content is deleted, and what is left of it goes later.
        """
        ...

    def close(self) -> None:
        """Let go of the database."""
        ...
