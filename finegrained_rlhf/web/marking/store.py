"""The database of marking: one file of SQLite in the directory that is served. Knows tables; knows no page and no rule.

What people do is a log of events that only grows; the state of a task is what its events make. Everything of one
request is one transaction.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sql
from sqlalchemy import (
    Boolean,
    Column,
    Float,
    ForeignKeyConstraint,
    Index,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.dialects.sqlite import insert

from finegrained_rlhf.core.errors import DataError

FILE = "marking.sqlite"
"""Name of the database, in the directory that is served."""
_BUSY_MS = 10_000
tables = sql.MetaData()


def _table(name: str, keys: str, /, *more: Any, **columns: Any) -> Table:
    """A table with these keys, which are texts, and these columns, none of which is ever empty."""
    made = [Column(key, String, primary_key=True) for key in keys.split()]
    return Table(name, tables, *made, *(Column(key, kind, nullable=False) for key, kind in columns.items()), *more)


def _log(name: str, /, *more: Any, **columns: Any) -> Table:
    """A table that only grows, its rows in their order."""
    return _table(name, "", Column("seq", Integer, primary_key=True, autoincrement=True), *more, **columns)


_TASK = "project annotator item"
accounts = _table("accounts", "name", role=String, password=String, active=Boolean)
invitations = _table("invitations", "digest", name=String, role=String, expires=Float)
sessions = _table("sessions", "digest", name=String, csrf=String, expires=Float)
failures = _table("failures", "key", count=Integer, until=Float)
projects = _table("projects", "id", path=String, manifest=Text, items=Text, rule=String)
members = _table("members", "project annotator", admitted=Boolean)
# Whoever sees a single item sees it alone, whatever two requests do at once.
_one_person = Index("one_person", "project", "item", unique=True, sqlite_where=sql.text("alone"))
assignments = _table("assignments", _TASK, _one_person, place=Integer, order=Text, alone=Boolean)
events = _log(
    "events",
    ForeignKeyConstraint(_TASK.split(), [f"assignments.{name}" for name in _TASK.split()]),
    UniqueConstraint("id"),
    Index("of_task", *_TASK.split(), "seq"),
    **dict.fromkeys(["id", *_TASK.split()], String),
    **{"at": Float, "update": Text, "before": Text},
)
states = _table("states", _TASK, version=Integer, state=Text, at=Float)
decisions = _log("decisions", project=String, item=String, reviewer=String, at=Float, decision=Text)
Row = Mapping[str, Any]


class Store:
    """Rows of the database; written by one thread at a time, flushed to the disk before a request is answered.

    Args:
        directory: that is served. The file is made when something is first written.
    """

    def __init__(self, directory: Path) -> None:
        self.file = directory / FILE
        self._writing = threading.RLock()
        self._made: sql.Engine | None = None

    @property
    def there(self) -> bool:
        """Whether anything was ever written."""
        return self.file.is_file()

    def _engine(self) -> sql.Engine:
        with self._writing:
            if self._made is None:
                engine = sql.create_engine(f"sqlite:///{self.file}")
                sql.event.listen(engine, "connect", _begun)
                try:
                    tables.create_all(engine)
                except sql.exc.DatabaseError as error:
                    raise DataError(f"is no database of marking ({error.orig})", file=self.file) from None
                self.file.chmod(0o600)  # hashes of passwords, and what people have not finished
                self._made = engine
            return self._made

    @contextmanager
    def writing(self) -> Iterator[sql.Connection]:
        """A transaction that takes effect as a whole or not at all."""
        with self._writing, self._engine().begin() as connection:
            yield connection

    def rows(self, query: sql.Select[Any]) -> list[Row]:
        """What a query finds; nothing where nothing was ever written."""
        if not self.there:
            return []
        with self._engine().connect() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    def one(self, query: sql.Select[Any]) -> Row | None:
        """The first row that a query finds."""
        return next(iter(self.rows(query.limit(1))), None)


def _begun(connection: Any, _: Any) -> None:
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", f"busy_timeout={_BUSY_MS}"):
        connection.execute(f"PRAGMA {pragma}")


def put(connection: sql.Connection, table: Table, rows: Sequence[Row] | Row) -> None:
    """Write rows, in the place of those with the same primary key."""
    several = [rows] if isinstance(rows, Mapping) else list(rows)
    if not several:
        return
    keys = [column.name for column in table.primary_key]
    statement = insert(table)
    changed = {name: statement.excluded[name] for name in several[0] if name not in keys}
    connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=changed), several)


def of_task(table: Table, project: str, annotator: str | None = None, item: str | None = None) -> Any:
    """The condition that rows are of a project, and where they are given of one person and item."""
    wanted = [table.c.project == project]
    wanted += [] if annotator is None else [table.c.annotator == annotator]
    wanted += [] if item is None else [table.c.item == item]
    return sql.and_(*wanted)


def text_of(value: Any) -> str:
    """A value as it is kept: JSON of ASCII, so that halves of characters survive too."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False)
