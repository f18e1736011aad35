"""One user as a JSON object, and back: everything that is stored of them, in the columns of the tables."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from finegrained_rlhf.core.checks import is_time
from finegrained_rlhf.core.errors import DataError, FineGrainedError
from finegrained_rlhf.personalization.store.database import SqlSession
from finegrained_rlhf.personalization.store.notes import STATES, text_of
from finegrained_rlhf.personalization.store.protocol import Consent, MemoryLimitError, MemoryLimits

FORM = "finegrained-rlhf: memory of one user"
VERSION = 1
_TABLES = {
    "events": {
        "id": "integer",
        "key": "name",
        "kind": "name",
        "body": "object",
        "applied": "integer",
        "at": "time",
        "used": "object or null",
    },
    "notes": {
        "key": "name",
        "body": "object",
        "vector": "base64 or null",
        "version": "version",
        "event": "event",
        "state": "state",
        "valid_from": "time",
        "valid_to": "time",
        "decided": "event or 0",
    },
    "versions": {
        "note": "name",
        "version": "version",
        "body": "object",
        "event": "event",
        "state": "state",
        "valid_from": "time",
        "valid_to": "time",
        "removed": "event or 0",
    },
    "evidence": {"note": "name", "version": "version", "event": "event"},
}
"""The columns of each table but the user's, and what their values are."""
_UNIQUE = {"events": ("key",), "notes": ("key",), "versions": ("note", "version"), "evidence": None}


@dataclass(frozen=True)
class ExportedUser:
    """A user as they were exported.

    Attributes:
        name: of the user.
        consent: what they had decided.
        tables: rows by table, values as the database takes them, events by their exported ids.
    """

    name: str
    consent: Consent | None
    tables: Mapping[str, list[dict[str, Any]]]


def exported(session: SqlSession, user: int, name: str) -> dict[str, Any]:
    """Everything that is stored of a user, as `MemoryStore.export_user` says.

    Args:
        session: a transaction that holds the user's row.
        user: the user's number.
        name: of the user.
    """
    decision = session.execute("SELECT may_store, may_train, decided_at FROM users WHERE id = ?", (user,)).fetchone()
    consent = {"store": bool(decision[0]), "train": bool(decision[1]), "at": decision[2]}
    tables = {}
    for table, columns in _TABLES.items():
        order = "id" if table == "events" else f"{'key' if table == 'notes' else 'note'}, version, event"
        rows = session.execute(
            f'SELECT {", ".join(columns)} FROM {table} WHERE "user" = ? ORDER BY {order}', (user,)
        ).fetchall()
        tables[table] = [
            {name: _to_json(kind, value) for (name, kind), value in zip(columns.items(), row, strict=True)}
            for row in rows
        ]
    head = {"form": FORM, "version": VERSION, "user": name}
    return {**head, "consent": None if decision[0] is None else consent, **tables}


def _to_json(kind: str, value: Any) -> Any:
    if value is None:
        return None
    if kind == "name":
        return text_of(value)
    if kind.startswith("object"):
        return json.loads(value)
    if kind.startswith("base64"):
        return base64.b64encode(value).decode()
    return STATES[value] if kind == "state" else value


def read_exported(data: Any, limits: MemoryLimits, word: Callable[[str], Any]) -> ExportedUser:
    """A user of a JSON object that may come from anywhere.

    Args:
        data: what `exported` gave.
        limits: what is refused.
        word: a name or key as its column keeps it.

    Raises:
        DataError: the object is not of this form or version, or its rows do not fit each other.
        MemoryLimitError: something in it is too large, or there is too much.
    """
    if not isinstance(data, dict) or (data.get("form"), data.get("version")) != (FORM, VERSION):
        raise DataError(f"expected the JSON of one user, form {FORM!r}, version {VERSION}")
    if set(data) != {"form", "version", "user", "consent", *_TABLES}:
        raise DataError(f"expected the fields form, version, user, consent, {', '.join(_TABLES)}")
    tables: dict[str, list[dict[str, Any]]] = {}
    events = {0}  # ids; 0 stands for none
    latest: dict[str, int] = {}  # versions of notes by their keys
    for table, columns in _TABLES.items():
        if not isinstance(data[table], list):
            raise DataError("expected a list", field=table)
        most = {"events": limits.events, "notes": limits.notes}.get(table, math.inf)
        if sum(not (isinstance(row, dict) and row.get("state") == "deleted") for row in data[table]) > most:
            raise MemoryLimitError(f"{table}: more than {most} (limits.{table})")
        tables[table], seen, last = [], set(), 0
        for place, row in enumerate(data[table], start=1):
            where = f"{table}, {place}"
            if not isinstance(row, dict) or set(row) != set(columns):
                raise DataError(f"expected the fields {', '.join(columns)}", record=where)
            values = {name: _value(kind, row[name], limits, where, name) for name, kind in columns.items()}
            identity = tuple(values[name] for name in _UNIQUE[table] or columns)
            if identity in seen or values.get("id", last + 1) <= last:
                raise DataError("expected each once, and events in the order of their ids, from 1", record=where)
            seen.add(identity)
            if table == "events":
                last = values["id"]
                events.add(last)
            elif table == "notes":
                latest[values["key"]] = values["version"]
                if values["vector"] == b"" and row["body"].get("encoder") != "":
                    raise DataError("expected a vector with the name of its encoder", record=where, field="vector")
            elif table == "versions" and values["version"] >= latest.get(values["note"], 0):
                raise DataError("expected a version before the note's own", record=where, field="version")
            for name, kind in columns.items():
                if kind.startswith("event") and (values[name] not in events or (kind == "event" and not values[name])):
                    raise DataError("expected the id of an event of this user", record=where, field=name)
                if kind == "name":
                    values[name] = word(values[name])
            tables[table].append(values)
    return ExportedUser(limits.name(data["user"], "user"), _consent(data["consent"]), tables)


def _value(kind: str, value: Any, limits: MemoryLimits, where: str, name: str) -> Any:
    """A value as the database takes it."""
    try:
        if value is None and (kind == "time" or kind.endswith("or null")):
            return None
        if kind == "name":
            return limits.name(value, name)
        if kind.startswith("object"):
            if isinstance(value, dict):
                return limits.body(value, name)
        elif kind.startswith("base64"):
            vector = base64.b64decode(value, validate=True)
            limits.vector(vector)
            if all(map(math.isfinite, memoryview(vector).cast("f"))):  # a TypeError where it is no whole number of them
                return vector
        elif kind == "state":
            return STATES.index(value)
        elif kind == "time":
            if is_time(value):
                return float(value)
        elif type(value) is int and abs(value) < 2**53 and (kind != "version" or value > 0):
            return value
    except (TypeError, ValueError, binascii.Error) as error:
        if isinstance(error, FineGrainedError):
            raise
    raise DataError(f"expected {kind}", record=where, field=name)


def _consent(value: Any) -> Consent | None:
    if value is None:
        return None
    if isinstance(value, dict) and set(value) == {"store", "train", "at"}:
        store, train, at = value["store"], value["train"], value["at"]
        if type(store) is bool and type(train) is bool and is_time(at) and (store or not train):
            return Consent(store, train, float(at))
    raise DataError("expected null, or an object with store, train and at", field="consent")


def import_rows(session: SqlSession, user: int, data: ExportedUser) -> None:
    """Write the rows of a user who is new, with new ids of events.

    Args:
        session: a transaction.
        user: the user's number.
        data: what `read_exported` gave.
    """
    ids = {0: 0}
    for table, rows in data.tables.items():
        columns = [name for name in _TABLES[table] if name != "id"]
        statement = f'INSERT INTO {table} ("user", {", ".join(columns)}) VALUES ({", ".join("?" * (len(columns) + 1))})'
        for row in rows:
            values = [ids[row[name]] if _TABLES[table][name].startswith("event") else row[name] for name in columns]
            session.execute(statement, (user, *values))
            if table == "events":
                where = (user, row["key"])
                ids[row["id"]] = session.execute(
                    'SELECT id FROM events WHERE "user" = ? AND key = ?', where
                ).fetchone()[0]
