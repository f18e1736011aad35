"""Who is forgotten leaves nothing, who refuses is not stored, and nobody else waits for it: on both stores."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from stores import PostgresStore, Store
from user_memory_toy import SECRET, count

from finegrained_rlhf.personalization.store import postgres
from finegrained_rlhf.personalization.store.protocol import (
    ConsentError,
    ForgottenUserError,
    NoteChange,
    NoteDecision,
    StoreError,
)


def test_nothing_is_left_of_the_forgotten(store: Store) -> None:
    memory, other = store.open(), store.open()
    stays = memory.user("stays")
    for number in range(300):  # so many that pages split and their cells move
        for name in ("stays", SECRET):
            handle = memory.user(name)
            event = handle.record(f"{name}-{number}", "edit", {"text": f"{name} {number} " * (number % 40 + 1)})
            handle.apply(event, [NoteChange(f"{name}-{number % 50}", {"text": name}, name.encode(), number // 50)])
    late = memory.user(SECRET)
    event = late.record("late", "edit", {})
    store.settle()
    assert store.traces(SECRET)
    assert other.forget(SECRET)
    store.settle()
    assert store.traces(SECRET) == []
    for work in (lambda: late.record("k", "edit", {}), lambda: late.apply(event, [NoteChange("n", {"text": SECRET})])):
        with pytest.raises(ForgottenUserError):
            work()
    assert late.notes() == [] == late.events() and not memory.forget(SECRET)
    assert len(stays.events()) == 300 and len(stays.notes()) == 50
    anew = memory.user(SECRET)
    assert anew.events() == [] and anew.notes() == []
    with pytest.raises(ForgottenUserError):  # the one of old, although there is a user of the name again
        late.record("k", "edit", {})
    memory.close()
    other.close()


def test_a_reader_in_the_way_does_not_keep_what_was_forgotten(store: Store) -> None:
    memory = store.open(patience_s=0.2)
    memory.user("goes").record("k", "edit", {"text": SECRET})
    with store.reader():
        with pytest.raises(StoreError, match="not yet overwritten"):
            memory.forget("goes")
        assert memory.user("goes").events() == []
        store.open(patience_s=0.2).close()  # opens although it cannot clean
    store.settle()
    assert store.traces(SECRET)
    store.open().close()
    store.settle()
    assert store.traces(SECRET) == []
    memory.close()


def test_others_are_served_while_a_reader_is_in_the_way(store: Store) -> None:
    memory = store.open(patience_s=2.0)
    for name in ("goes", "stays"):
        memory.user(name).record("k", "edit", {"text": SECRET})
    ended: list[str] = []

    def forget() -> None:
        with pytest.raises(StoreError, match="not yet overwritten"):
            memory.forget("goes")
        ended.append("forgotten")

    with store.reader():
        forgetting = threading.Thread(target=forget)
        forgetting.start()
        while memory.known("goes") is not None:
            time.sleep(0.01)
        for number in range(5):
            time.sleep(0.05)
            memory.user("stays").record(f"k{number}", "edit", {})
            assert len(memory.user("stays").events()) == number + 2 and not ended  # it did not wait for `forget`
        forgetting.join()
    assert ended and memory.forget("goes") is False  # and overwrites now what could not be
    assert memory._database.read("SELECT * FROM unfinished") == []
    memory.close()


def test_users_are_forgotten_while_others_write(store: Store) -> None:
    memory, busy = store.open(), store.open()
    ended = threading.Event()
    written: list[str] = []

    def write() -> None:
        while not ended.is_set():
            written.append(f"k{len(written)}")
            count(busy.user("stays"), written[-1])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(10):
            for turn in range(5):
                count(memory.user(f"goes {number}"), f"{SECRET} {turn}")
            assert memory.forget(f"goes {number}") and store.traces(SECRET) == []
    finally:
        ended.set()
        writer.join()
    assert [event.key for event in memory.user("stays").events()] == written and written
    assert memory.user("stays").note("sum").body == {"total": len(written)}
    memory.close()
    busy.close()


def test_nothing_is_stored_without_consent(store: Store) -> None:
    asks, takes = store.open(consent_required=True), store.open()
    with pytest.raises(ConsentError):
        asks.user("ada")
    assert takes.known("ada") is None and asks.reader("ada").notes() == [] and asks.consent("ada") is None
    assert takes.may_store("ada") and not asks.may_store("ada")
    with pytest.raises(ConsentError, match="train"):
        asks.set_consent("ada", store=False, train=True)
    said = asks.set_consent("ada", store=True, train=False)
    assert takes.consent("ada") == said and said.at > 1.7e9
    event = asks.user("ada").record("k", "edit", {"text": SECRET})
    later = asks.set_consent("ada", store=True, train=True)
    assert asks.consent("ada") == later and later.at >= said.at
    with pytest.raises(ConsentError, match="forget"):  # withdrawal
        asks.set_consent("ada", store=False, train=False)
    assert asks.consent("ada") == later and asks.user("ada").events() == [event]
    assert asks.forget("ada") and asks.consent("ada") is None
    refusal = takes.set_consent("eve", store=False, train=False)
    assert takes.consent("eve") == refusal
    for memory in (asks, takes):  # also where users without a decision are stored
        with pytest.raises(ConsentError):
            memory.user("eve")
        with pytest.raises(ConsentError):
            memory.known("eve").record("k", "edit", {})
    open_handle = takes.user("bob")
    with pytest.raises(ConsentError):
        asks.known("bob").record("k", "edit", {})
    takes.set_consent("bob", store=False, train=False)
    with pytest.raises(ConsentError):  # who decides while a handle is open
        open_handle.record("k", "edit", {})
    asks.close()
    takes.close()


def test_a_refusal_outlives_forget_and_the_name_does_not(store: Store) -> None:
    memory, other = store.open(), store.open()
    refusal = memory.set_consent(SECRET, store=False, train=False)
    assert memory.forget(SECRET)
    store.settle()
    assert store.traces(SECRET) == [] and memory.known(SECRET) is None
    assert other.consent(SECRET) == refusal and not other.may_store(SECRET) and other.may_store("eve")
    for _ in range(2):  # `forget` once more changes nothing
        with pytest.raises(ConsentError):
            other.user(SECRET)
        assert not other.forget(SECRET)
    other.may_store = lambda name: True  # a refusal that comes after this was looked at
    with pytest.raises(ConsentError):
        other.user(SECRET)
    assert other.known(SECRET) is None
    memory.set_consent(SECRET, store=True, train=False)
    memory.user(SECRET).record("k", "edit", {})
    assert memory.forget(SECRET) and memory.consent(SECRET) is None and memory.user(SECRET).events() == []
    memory.close()
    other.close()


def test_a_round_from_before_forget_is_refused(store: Store) -> None:
    memory, other = store.open(), store.open()
    owners = {name: memory.reader(name).owner for name in ("ada", "eve")}  # of rounds before anything is stored
    assert memory.known("ada") is None and max(owners.values()) < 0
    memory.user("ada", owners["ada"])
    stored = memory.reader("ada").owner
    assert memory.user("ada", owners["ada"]).owner == stored == memory.user("ada", stored).owner
    for _ in range(
        2
    ):  # the second time there is nobody to be forgotten, and rounds from before are refused all the same
        before = memory.reader("ada").owner
        other.forget("ada")
        for owner in (owners["ada"], stored, before):
            with pytest.raises(ForgottenUserError):
                memory.user("ada", owner)
        assert memory.known("ada") is None
    memory.user("ada", memory.reader("ada").owner)
    memory.user("eve", owners["eve"])
    with pytest.raises(ForgottenUserError):  # of another user
        memory.user("eve", memory.user("ada").owner)
    memory.close()
    other.close()


def test_epochs_are_known_to_those_who_keep_answers(store: Store) -> None:
    memory, other = store.open(), store.open()
    ada, eve = memory.reader("ada").answer_owner, memory.reader("eve").answer_owner
    assert other.reader("ada").answer_owner == ada and ada.name != eve.name
    assert "ursula" not in f"{memory.reader('ursula').answer_owner}"  # no hexadecimal digits: no chance hit
    assert memory.user("ada").answer_owner == ada
    other.forget("ada")
    assert memory.reader("ada").answer_owner == replace(ada, epoch=ada.epoch + 1)
    assert memory.reader("eve").answer_owner == eve
    memory.close()
    other.close()


@pytest.mark.slow
def test_a_schema_from_before_and_a_table_that_is_held(
    server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PostgresStore(*server)
    memory = store.open()
    count(memory.user("ada"), "first")
    memory.set_consent("eve", store=False, train=False)
    memory.close()
    store.run(*[f"DROP TABLE {store.schema}.{table}" for table in ("secret", "epochs", "refusals", "versions")])
    store.run(
        f"ALTER TABLE {store.schema}.users DROP COLUMN decisions",
        *[f"ALTER TABLE {store.schema}.notes DROP COLUMN {name}" for name in ("state", "valid_from", "valid_to")],
        f"ALTER TABLE {store.schema}.notes DROP COLUMN decided",
    )
    memory, other = store.open(patience_s=1.0), store.open(patience_s=0.5)
    assert [event.key for event in memory.known("ada").events()] == ["first"]
    memory.known("ada").decide(NoteDecision("sum", "correct", {"total": 3}))
    assert other.known("ada").note("sum").body == {"total": 3} and memory.known("ada").history()[0].valid_from is None
    assert memory.forget("eve") and not other.may_store("eve")
    monkeypatch.setattr(postgres, "_SEES_DELETED", "SELECT 1 WHERE false")  # a reader that came later holds the tables
    with store.reader():
        forgetting = threading.Thread(target=lambda: pytest.raises(StoreError, memory.forget, "ada"))
        forgetting.start()
        while forgetting.is_alive():
            other.user("bob").record(str(time.monotonic()), "edit", {})  # waits for no more than a moment
        forgetting.join()
    assert len(other.user("bob").events()) > 3
    memory.close()
    other.close()
