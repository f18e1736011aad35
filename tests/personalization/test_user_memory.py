"""The store of user memory: nothing acknowledged is lost, users are apart, the forgotten leave nothing.

What every store has to do is asked of both; the one on a PostgreSQL server is slow (tests/helpers/stores.py says how a
server is found).
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import user_memory_toy
from stores import PostgresStore, Store
from user_memory_toy import SECRET, count

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.personalization import MemoryLimits, PostgresMemory, UserMemory
from finegrained_rlhf.personalization.store.protocol import (
    ForgottenUserError,
    MemoryLimitError,
    MemoryStore,
    NoteChange,
    NoteConflictError,
    NoteDecision,
    RepeatedKeyError,
    StoreError,
)


def test_an_event_is_pending_until_its_notes_are_written(memory: MemoryStore) -> None:
    handle = memory.user("ada")
    event = handle.record("round-1", "edit", {"draft": "a", "edited": "b"})
    assert handle.pending() == [event] == handle.events() and not event.applied
    assert handle.apply(event, [NoteChange("n", {"says": "short"}, b"\x00\x01")])
    (note,) = handle.notes()
    assert (note.key, note.body, note.vector, note.version, note.event) == (
        "n",
        {"says": "short"},
        b"\0\1",
        1,
        event.id,
    )
    assert handle.pending() == [] and handle.events()[0].applied
    assert not handle.apply(event, [NoteChange("n", {"says": "long"}, expected=1)])  # it was applied before
    assert handle.note("n") == note and handle.note("other") is None


def test_tries_in_vain_are_counted_until_an_event_is_applied(memory: MemoryStore) -> None:
    handle = memory.user("ada")
    first, second = handle.record("1", "edit", {}), handle.record("2", "edit", {})
    for _ in range(2):
        handle.count_try(first)
    memory.user("eve").count_try(second)  # another user's: nothing
    memory.reader("nobody").count_try(second)
    assert [(event.key, event.tries, event.applied) for event in handle.pending()] == [("1", 2, False), ("2", 0, False)]
    assert handle.record("1", "edit", {}).tries == 2
    assert handle.apply(first, [NoteChange("n", {"v": 1})]) and not handle.apply(first)
    handle.count_try(first)  # it is applied: nothing
    assert [(event.key, event.tries, event.applied) for event in handle.events()] == [("1", 0, True), ("2", 0, False)]


def test_a_key_is_for_one_event(memory: MemoryStore) -> None:
    handle = memory.user("ada")
    event = handle.record("k", "edit", {"a": 1, "b": 2})
    assert handle.record("k", "edit", {"b": 2, "a": 1}) == event and len(handle.events()) == 1
    with pytest.raises(RepeatedKeyError):
        handle.record("k", "edit", {"a": 2})
    with pytest.raises(RepeatedKeyError):
        handle.record("k", "other", {"a": 1, "b": 2})
    assert memory.user("eve").record("k", "edit", {"a": 2}).id != event.id


def test_a_change_that_comes_too_late_writes_nothing(memory: MemoryStore) -> None:
    handle = memory.user("ada")
    first, second = handle.record("1", "edit", {}), handle.record("2", "edit", {})
    handle.apply(first, [NoteChange("n", {"v": 1})])
    for late in (NoteChange("n", {"v": 2}), NoteChange("n", {"v": 2}, expected=2), NoteChange("m", {}, expected=1)):
        with pytest.raises(NoteConflictError):
            handle.apply(second, [NoteChange("other", {}), late])
    assert [note.key for note in handle.notes()] == ["n"] and [event.key for event in handle.pending()] == ["2"]
    handle.apply(second, [NoteChange("n", {"v": 2}, expected=1)])
    assert handle.note("n").version == 2 and handle.note("n").event == second.id


HOSTILE = (
    "ada",
    "Ada",
    "ada ",
    "ada'; DROP TABLE notes; --",
    "ada\0",
    "%",
    "_",
    "../../ada",
    "1 OR 1=1",
    "ａda",
    "a\u0308da",
)


def test_users_see_nothing_of_each_other(memory: MemoryStore) -> None:
    for number, name in enumerate(HOSTILE):
        handle = memory.user(name)
        event = handle.record("k", "edit", {"text": f"x'); DELETE FROM events; -- {number}"})
        handle.apply(event, [NoteChange("n", {"user": HOSTILE[number - 1], "number": number})])
    for number, name in enumerate(HOSTILE):
        handle = memory.user(name)
        assert [note.body["number"] for note in handle.notes()] == [number]
        assert [event.body["text"][-1:] for event in handle.events()] == [str(number)[-1:]]
    foreign = memory.user("ada").events()[0]
    with pytest.raises(ForgottenUserError):
        memory.user("%").apply(foreign, [NoteChange("m", {})])
    assert memory.forget("%") and len(memory.user("ada").notes()) == 1 == len(memory.user("_").notes())


def test_the_latest_events_of_a_kind(memory: MemoryStore) -> None:
    handle = memory.user("ada")
    for number in range(6):
        handle.record(str(number), "edit" if number % 2 else "other", {})
    assert [event.key for event in handle.events("edit", last=2)] == ["3", "5"]
    assert [event.key for event in handle.events(last=1)] == ["5"] and handle.events("none") == []


def test_limits_refuse_and_store_nothing(store: Store) -> None:
    limits = MemoryLimits(name_bytes=8, body_bytes=40, vector_bytes=4, events=2, notes=1)
    memory = store.open(limits=limits)
    with pytest.raises(MemoryLimitError, match="user"):
        memory.user("é" * 5)
    handle = memory.user("é" * 4)
    for key, body in (("k" * 9, {}), ("k", {"text": "x" * 40})):
        with pytest.raises(MemoryLimitError):
            handle.record(key, "edit", body)
    for key, body in ((" ", {}), ("k", {"x": float("nan")}), ("k", {"x": object()}), ("k", {"x": "\ud800"})):
        with pytest.raises(DataError):
            handle.record(key, "edit", body)
    first, _ = handle.record("1", "edit", {}), handle.record("2", "edit", {})
    with pytest.raises(MemoryLimitError, match="events"):
        handle.record("3", "edit", {})
    for change in (NoteChange("n", {}, b"12345"), NoteChange("n", {"text": "x" * 40}), NoteChange("n" * 9)):
        with pytest.raises(MemoryLimitError):
            handle.apply(first, [change])
    with pytest.raises(MemoryLimitError, match="notes"):
        handle.apply(first, [NoteChange("n"), NoteChange("m")])
    assert handle.notes() == [] and len(handle.pending()) == 2 and handle.record("1", "edit", {}) == first
    for wrong in ("", "  ", None, 3, "\ud800"):
        with pytest.raises(DataError):
            memory.user(wrong)
    with pytest.raises(ConfigError):
        MemoryLimits(events=0)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("no database at all, but long enough to be read as one" * 20)
    foreign = sqlite3.connect(tmp_path / "foreign.db")
    foreign.execute("CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT)")
    foreign.close()
    for path in (tmp_path / "text.db", tmp_path / "foreign.db", tmp_path, tmp_path / "text.db/below.db"):
        with pytest.raises(StoreError):
            UserMemory(path)
    assert (tmp_path / "text.db").read_text().startswith("no database")


@pytest.mark.parametrize(
    "more", ["TRIGGER users AFTER INSERT ON events BEGIN DELETE FROM notes; END", "VIEW v AS SELECT 1"]
)
def test_a_file_with_a_strangers_trigger_or_view_is_refused(more: str, tmp_path: Path) -> None:
    UserMemory(tmp_path / "users.db", durable=False).close()
    stranger = sqlite3.connect(tmp_path / "users.db")
    stranger.execute(f"CREATE {more}")
    stranger.close()
    with pytest.raises(StoreError, match="another program's"):
        UserMemory(tmp_path / "users.db", durable=False)


def test_a_memory_in_no_file_is_refused_when_it_is_opened() -> None:
    with pytest.raises(StoreError, match="expected a file"):
        UserMemory(":memory:")


def test_a_backup_is_never_more_readable_than_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, modes = UserMemory(tmp_path / "users.db", durable=False), []
    (tmp_path / "users.db").chmod(0o640)
    rename = os.replace

    def seen(source: Path, target: Path) -> None:
        rename(source, target)
        modes.append(target.stat().st_mode & 0o777)

    monkeypatch.setattr("os.replace", seen)
    memory.backup(tmp_path / "copy.db")
    memory.close()
    assert modes == [0o640]


def test_an_event_with_a_note_too_many_is_not_stored_either(store: Store) -> None:
    memory = store.open(limits=MemoryLimits(notes=1))
    handle = memory.user("ada")
    assert handle.record("1", "remark", {}, changes=[NoteChange("1")]).applied
    with pytest.raises(MemoryLimitError, match="notes"):
        handle.record("2", "remark", {}, changes=[NoteChange("2")])
    assert [event.key for event in handle.events()] == ["1"] and handle.evidence().keys() == {"1"}
    handle.record("1", "remark", {}, changes=[NoteChange("1", {"again": 1})])  # a retry
    assert handle.note("1").version == 1
    memory.close()


def test_a_backup_is_of_one_time_while_others_write(tmp_path: Path) -> None:
    memory, busy = (UserMemory(tmp_path / "users.db", durable=False) for _ in range(2))
    for number in range(200):
        count(memory.user("ada"), f"before {number}")
    memory.user("goes").record("k", "edit", {"text": SECRET})
    (tmp_path / "users.db").chmod(0o600)
    ended = threading.Event()

    def write() -> None:
        while not ended.is_set():
            count(busy.user("ada"), f"k{time.monotonic_ns()}")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(5):
            seen = len(memory.user("ada").events())
            memory.backup(tmp_path / "copies" / f"{number}.db")
            while len(memory.user("ada").events()) == seen:
                time.sleep(0.001)
    finally:
        ended.set()
        writer.join()
    copies = sorted((tmp_path / "copies").iterdir())
    assert [copy.name for copy in copies] == [f"{number}.db" for number in range(5)]  # nothing beside them
    assert {copy.stat().st_mode & 0o777 for copy in copies} == {0o600}
    events = [event.key for event in memory.user("ada").events()]
    memory.forget("goes")
    lengths = []
    for copy in copies:
        opened = UserMemory(copy, durable=False)
        ada = opened.known("ada")
        copied = [event.key for event in ada.events()]
        assert copied == events[: len(copied)]
        assert ada.note("sum").body["total"] in (len(copied), len(copied) - 1) and len(ada.pending()) <= 1
        assert len(opened.known("goes").events()) == 1
        assert opened.reader("eve").answer_owner == memory.reader("eve").answer_owner
        lengths.append(len(copied))
        opened.close()
    assert lengths == sorted(lengths) and 200 <= lengths[0] < lengths[-1] <= len(events)
    with pytest.raises(DataError, match="there already"):
        memory.backup(copies[0])
    with pytest.raises(StoreError, match="could not be copied"):
        memory.backup(copies[0] / "below.db")
    (tmp_path / "users.db").rename(tmp_path / "moved.db")
    with pytest.raises(StoreError, match="could not be copied"):
        memory.backup(tmp_path / "none.db")
    assert not (tmp_path / "none.db").exists() and not (tmp_path / "users.db").exists()


def test_threads_share_a_memory(memory: MemoryStore) -> None:
    handle = memory.user("ada")
    threads = [threading.Thread(target=lambda n=n: [count(handle, f"{n}-{i}") for i in range(10)]) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert handle.note("sum").body == {"total": 40} and len(handle.notes()) == 41 and handle.pending() == []


def test_an_event_that_arrives_several_times_at_once_is_one(store: Store) -> None:
    memories = [store.open() for _ in range(4)]
    ready, found = threading.Barrier(4), []

    def arrive(memory: MemoryStore) -> None:
        for number in range(10):
            ready.wait()
            handle = memory.user(f"user {number}")
            event = handle.record("k", "edit", {"text": "the same"})
            found.append((event.id, handle.apply(event, [NoteChange("n")])))

    threads = [threading.Thread(target=arrive, args=(memory,)) for memory in memories]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 40 and len({event for event, _ in found}) == 10 and sum(applied for _, applied in found) == 10
    for memory in memories:
        memory.close()


@pytest.mark.slow
def test_processes_that_write_at_once_lose_nothing(store: Store) -> None:
    script = [sys.executable, user_memory_toy.__file__, "write", *store.named]
    writers = [subprocess.Popen([*script, f"writer{number}", "20"]) for number in range(8)]
    assert [writer.wait() for writer in writers] == [0] * 8
    memory = store.open()
    handle = memory.user("shared")
    assert handle.note("sum").body == {"total": 160} and handle.note("sum").version == 160
    assert len(handle.events()) == 201 and len(handle.notes()) == 162 and handle.pending() == []
    assert handle.note("by hand").body == {"total": 40} and handle.note("by hand").version == 41
    memory.close()


@pytest.mark.slow
def test_a_kill_at_any_statement_leaves_all_that_was_acknowledged(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, user_memory_toy.__file__, "kill", str(tmp_path)], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    steps = int(run.stdout)
    assert steps > 60
    for step in range(1, steps + 1):
        said = (tmp_path / f"{step}.said").read_text().split() if (tmp_path / f"{step}.said").exists() else []
        memory = UserMemory(tmp_path / f"{step}.db")
        assert memory._database.read("PRAGMA integrity_check") == [("ok",)]
        handle = memory.user("stays")
        there = {event.key: event.applied for event in handle.events()}
        assert all(there[word] for word in said if word != "forgotten")
        assert (handle.note("second", unused=True) is not None) >= ("decided" in there)
        held = [note.version for note in handle.notes(unused=True) if note.state == "held"]
        assert held == [2] * ("decided" in there) and len(handle.history("second")) == len(held) == handle.decisions()
        applied = sum(there.values()) - len(held)
        total = handle.note("sum")
        assert (0 if total is None else total.body["total"]) == applied == max(len(handle.notes(unused=True)) - 1, 0)
        if "forgotten" in said or not memory.user("goes").events() and "second" in said:
            files = list(tmp_path.glob(f"{step}.db*"))
            assert not [file for file in files if SECRET.encode() in file.read_bytes()]
        for event in handle.pending():  # what was cut off goes on
            count(handle, event.key)
        assert handle.pending() == []
        memory.close()


@pytest.mark.slow
def test_schemas_that_are_refused_and_a_connection_that_ends(server: tuple[str, Path]) -> None:
    store = PostgresStore(*server)
    memory = store.open()
    handle = memory.user("ada")
    count(handle, "first")
    ended = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'memory' AND pid <> pg_backend_pid()"
    )
    store.run(ended)
    with pytest.raises(StoreError):
        count(handle, "second")
    count(handle, "second")  # by a new connection
    assert handle.note("sum").body == {"total": 2}
    store.run("CREATE ROLE guest LOGIN", f"GRANT USAGE ON SCHEMA {store.schema} TO guest")
    with pytest.raises(StoreError, match="another role"):
        PostgresMemory(store.where.replace("user=memory", "user=guest"), schema=store.schema)
    store.run(f"CREATE TABLE {store.schema}.other ()", "CREATE SCHEMA theirs", "CREATE TABLE theirs.users (name TEXT)")
    for schema in (store.schema, "theirs"):
        with pytest.raises(StoreError, match=f"schema {schema}: it is another program's"):
            PostgresMemory(store.where, schema=schema)
    store.run("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")
    with pytest.raises(StoreError, match="UTF8, got LATIN1"):
        PostgresMemory(store.where.replace("dbname=postgres", "dbname=latin"))
    with pytest.raises(StoreError):
        PostgresMemory("host=/nowhere/at/all", patience_s=1)
    with pytest.raises(ConfigError, match="schema"):
        PostgresMemory(store.where, schema="a; DROP TABLE users")
    with pytest.raises(ConfigError, match=f"pg_dump --schema={store.schema}"):
        memory.backup("copy.db")
    memory.close()


def test_vectors_are_replaced_where_notes_are_as_they_were(memory: MemoryStore) -> None:
    handle = memory.user("ada")
    for key in ("same", "changed"):
        handle.apply(handle.record(key, "edit", {}), [NoteChange(key, {"v": 1}, b"old")])
    made = [replace(note, body={"v": 2}, vector=b"new") for note in handle.notes()]
    handle.apply(handle.record("later", "edit", {}), [NoteChange("changed", {"v": 3}, b"newer", 1)])
    evidence = handle.evidence()
    handle.replace_vectors(made)
    assert [(note.key, note.body, note.vector, note.version) for note in handle.notes()] == [
        ("same", {"v": 2}, b"new", 1),
        ("changed", {"v": 3}, b"newer", 2),
    ]
    assert handle.evidence() == evidence
    with pytest.raises(MemoryLimitError):
        handle.replace_vectors([replace(made[0], body={}), replace(made[1], vector=bytes(70_000))])
    assert handle.note("same").body == {"v": 2}
    memory.forget("ada")
    handle.replace_vectors(made)
    assert handle.notes() == [] and memory.user("ada").notes() == []


def test_what_a_note_was_derived_from_and_what_was_used(memory: MemoryStore) -> None:
    handle = memory.user("ada")
    first, second, third = (handle.record(str(n), "edit", {"n": n}, {"notes": ["a"]} if n else None) for n in range(3))
    assert first.used is None and second.used == {"notes": ["a"]} and 1.7e9 < first.at <= second.at
    assert (
        handle.record("1", "edit", {"n": 1}, {"notes": ["other"]}) == second
    )  # the same event, whatever it is said to use
    handle.apply(first, [NoteChange("n", {"v": 1})])
    handle.apply(third, [NoteChange("n", {"v": 2}, expected=1, evidence=(second.id, third.id)), NoteChange("m")])
    assert handle.evidence() == {"n": [(1, first.id), (2, second.id), (2, third.id)], "m": [(1, third.id)]}
    assert (
        handle.versions() == {"n": 2, "m": 1} and memory.user("eve").evidence() == {} == memory.user("eve").versions()
    )
    with pytest.raises(DataError):
        handle.record("3", "edit", {}, {"notes": float("nan")})


@pytest.mark.parametrize("before", ["evidence", "epochs", "decisions"])
def test_a_file_from_before_is_read(before: str, tmp_path: Path) -> None:
    old = sqlite3.connect(tmp_path / "users.db")
    old.executescript(OLD + {"evidence": "", "epochs": OLD_EVIDENCE, "decisions": OLD_EVIDENCE + OLD_HASHES}[before])
    old.close()
    for _ in range(2):  # with its new tables, the second time
        memory = UserMemory(tmp_path / "users.db", durable=False)
        handle = memory.known("ada")
        (event,) = handle.events()
        assert (event.body, event.at, event.used, event.applied) == ({"text": "old"}, None, None, True)
        assert handle.notes()[0].body == {"says": "short"} and handle.evidence() == {"n": [(2, event.id)]}
        assert memory.consent("ada") is None and handle.decisions() == 0 == len(handle.history())
        assert memory._key == bytes(32) or before != "decisions"
        memory.close()
    memory = UserMemory(tmp_path / "users.db", durable=False)
    memory.user("ada").decide(NoteDecision("n", "correct", {"says": "long"}))
    assert [note.body["says"] for note in memory.user("ada").history()] == ["short"]
    if before == "epochs":  # a refusal from before them outlives `forget` too
        assert memory.forget("eve") and not memory.may_store("eve")
    memory.user("ada").record("new", "edit", {}, {"notes": ["n"]})
    assert memory.user("ada").events()[2].used == {"notes": ["n"]}
    memory.close()


OLD = """
CREATE TABLE users (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE);
CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT, user INTEGER NOT NULL REFERENCES users (id), key TEXT NOT NULL,
    kind TEXT NOT NULL, body TEXT NOT NULL, applied INTEGER NOT NULL DEFAULT 0, UNIQUE (user, key)
);
CREATE TABLE notes (
    user INTEGER NOT NULL REFERENCES users (id), key TEXT NOT NULL, body TEXT NOT NULL, vector BLOB,
    version INTEGER NOT NULL, event INTEGER NOT NULL, PRIMARY KEY (user, key)
);
CREATE TABLE unfinished (id INTEGER PRIMARY KEY AUTOINCREMENT);
PRAGMA application_id = 1179079240;
INSERT INTO users (name) VALUES ('ada');
INSERT INTO events (user, key, kind, body, applied) VALUES (1, 'k', 'edit', '{"text": "old"}', 1);
INSERT INTO notes VALUES (1, 'n', '{"says": "short"}', NULL, 2, 1);
"""
OLD_EVIDENCE = """
CREATE TABLE evidence (
    user INTEGER NOT NULL REFERENCES users (id), note TEXT NOT NULL, version INTEGER NOT NULL, event INTEGER NOT NULL,
    PRIMARY KEY (user, note, version, event)
) WITHOUT ROWID;
ALTER TABLE users ADD COLUMN may_store INTEGER;
ALTER TABLE users ADD COLUMN may_train INTEGER;
ALTER TABLE users ADD COLUMN decided_at REAL;
ALTER TABLE events ADD COLUMN at REAL;
ALTER TABLE events ADD COLUMN used TEXT;
INSERT INTO users (name, may_store, may_train, decided_at) VALUES ('eve', 0, 0, 1.8e9);
INSERT INTO evidence VALUES (1, 'n', 2, 1);
"""
OLD_HASHES = """
CREATE TABLE secret (id INTEGER PRIMARY KEY, key BLOB NOT NULL);
CREATE TABLE epochs (place INTEGER PRIMARY KEY, epoch INTEGER NOT NULL);
CREATE TABLE refusals (name BLOB PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID;
INSERT INTO secret VALUES (1, zeroblob(32));
"""
