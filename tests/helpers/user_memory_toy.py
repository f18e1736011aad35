"""Processes that write to a user memory, and that are killed while they do. Run as a script: MODE FILE ARGUMENTS."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from finegrained_rlhf.personalization.store.memory import UserMemory  # noqa: E402
from finegrained_rlhf.personalization.store.postgres import PostgresMemory  # noqa: E402
from finegrained_rlhf.personalization.store.protocol import (  # noqa: E402
    NoteChange,
    NoteConflictError,
    NoteDecision,
    UserHandle,
)

SECRET = "canary-of-the-one-who-is-forgotten"


def count(handle: UserHandle, key: str) -> None:
    """One event that adds one to a shared note, and a note of its own."""
    event = handle.record(key, "edit", {"text": key})
    while True:
        note = handle.note("sum")
        total, version = (0, 0) if note is None else (note.body["total"], note.version)
        try:
            handle.apply(event, [NoteChange("sum", {"total": total + 1}, None, version), NoteChange(key, {})])
            return
        except NoteConflictError:
            continue


def write_many(where: str, schema: str, name: str, writes: str) -> None:
    """One of several processes that write at once; to a file, which has no schema, or to a server."""
    store = PostgresMemory(where, schema=schema) if schema else UserMemory(where, durable=False)
    handle = store.user("shared")
    handle.apply(handle.record("by hand", "edit", {}), [NoteChange("by hand", {"total": 0})])
    for number in range(int(writes)):
        count(handle, f"{name}-{number}")
        if number % 4 == 0:
            correct(handle)


def correct(handle: UserHandle) -> None:
    """Somebody adds one to a note by hand."""
    while True:
        note = handle.note("by hand")
        assert note is not None
        try:
            body = {"total": note.body["total"] + 1}
            handle.decide(NoteDecision("by hand", "correct", body, expected=note.version))
            return
        except NoteConflictError:
            continue


def work(file: Path, say: Callable[[str], None]) -> None:
    """Three events of one user, of whom another is forgotten in between; what returned is said."""
    memory = UserMemory(file, durable=False)
    handle = memory.user("stays")
    count(handle, "first")
    say("first")
    memory.user("goes").record("secret", "edit", {"text": SECRET})
    count(handle, "second")
    say("second")
    handle.decide(NoteDecision("second", "hold"), "decided")
    say("decided")
    memory.forget("goes")
    say("forgotten")
    count(handle, "third")
    say("third")


def kill_at_every_statement(directory: str) -> None:
    """Do the work again and again, killed at its first statement, its second, and so on, until it comes to its end.

    Leaves `N.db` and `N.said` for each N.
    """
    connect, step = sqlite3.connect, 0
    while True:
        step += 1
        child = os.fork()
        if child == 0:
            left = step

            def before(statement: str) -> None:
                nonlocal left
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

            def traced(*args: Any, **kwargs: Any) -> sqlite3.Connection:
                connection = connect(*args, **kwargs)
                connection.set_trace_callback(before)
                return connection

            sqlite3.connect = traced  # type: ignore[assignment]
            with open(f"{directory}/{step}.said", "a", encoding="utf-8") as said:
                work(Path(f"{directory}/{step}.db"), lambda word: print(word, file=said, flush=True))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            print(step)
            return


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write_many(*sys.argv[2:])
    else:
        kill_at_every_statement(*sys.argv[2:])
