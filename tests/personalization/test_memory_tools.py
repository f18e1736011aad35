"""One user's notes as tools: what they give, refuse and forget, and that no other user's notes are ever reached."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.generation.wrappers import ScriptedGenerator
from finegrained_rlhf.personalization import Cipher, MemoryLimits, MemoryTools, ServeMemory, UserMemory, memory_tools
from finegrained_rlhf.personalization.memory_tools import make_server
from finegrained_rlhf.personalization.store.protocol import ConsentError, MemoryLimitError, NoteConflictError
from finegrained_rlhf.personalization.store.sql import SqlHandle

CANARY = "CANARY-OF-ADA"


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[UserMemory]:
    store = UserMemory(str(tmp_path / "users.db"), durable=False)
    yield store
    store.close()


def allowed(memory: UserMemory, user: str) -> MemoryTools:
    memory.set_consent(user, store=True, train=False)
    return MemoryTools(memory, user)


def test_what_is_recorded_is_recalled_with_its_evidence_and_nearest_first(memory: UserMemory) -> None:
    tools = allowed(memory, "ada")
    tools.record("My dog is called Bello.")
    tools.record("I like short letters.")
    dog, letters = tools.recall("what is the dog called")
    assert dog["says"] == {"text": "My dog is called Bello."} and letters["says"]["text"] == "I like short letters."
    events = {event.id: event.body for event in memory.reader("ada").events()}
    assert [events[number] for number in dog["evidence"]] == [dog["says"]] and dog["since"] is not None
    assert [note["says"] for note in tools.recall(most=1)] == [letters["says"]]


def test_a_correction_keeps_what_was_said_and_refuses_a_note_that_has_changed(memory: UserMemory) -> None:
    tools = allowed(memory, "ada")
    key = tools.record("I live in Rome.")["note"]
    tools.correct(key, {"text": "I live in Oslo."}, version=1)
    (note,) = tools.recall()
    assert note["says"] == {"text": "I live in Oslo."} and note["version"] == 2
    assert [old.body["text"] for old in memory.reader("ada").history(key)] == ["I live in Rome."]
    with pytest.raises(NoteConflictError):
        tools.correct(key, {"text": "I live in Bonn."}, version=1)
    with pytest.raises(DataError):
        tools.correct(key, {"other": "x"})


def test_nothing_is_recorded_without_consent(memory: UserMemory, tmp_path: Path) -> None:
    tools = MemoryTools(memory, "ada")
    with pytest.raises(ConsentError, match="store=true"):
        tools.record(CANARY)
    assert tools.recall() == [] and memory.known("ada") is None
    memory.set_consent("ada", store=False, train=False)
    with pytest.raises(ConsentError):
        tools.record(CANARY)
    assert CANARY.encode() not in b"".join(file.read_bytes() for file in tmp_path.iterdir())


def test_one_note_goes_and_everything_goes_from_the_files(memory: UserMemory, tmp_path: Path) -> None:
    tools = allowed(memory, "ada")
    first, _ = tools.record(CANARY)["note"], tools.record("another " + CANARY)
    tools.forget(first)
    assert [note["says"]["text"] for note in tools.recall()] == ["another " + CANARY]
    for wrong in ({}, {"note": first, "everything": True}):
        with pytest.raises(DataError):
            tools.forget(**wrong)
    assert tools.forget(everything=True) == {"forgotten": True} and tools.recall() == []
    assert CANARY.encode() not in b"".join(file.read_bytes() for file in tmp_path.iterdir())


def test_agents_take_no_notice_of_what_a_client_records(memory: UserMemory) -> None:
    prompts: list[str] = []
    agent = Cipher(memory, ScriptedGenerator(lambda prompt: prompts.append(prompt) or "a draft"))
    allowed(memory, "ada").record(CANARY)
    assert agent.respond("ada", f"about {CANARY[:6]}").text == "a draft" and CANARY not in prompts[0]


def test_a_text_at_the_limit_of_notes_leaves_no_event(tmp_path: Path) -> None:
    memory = UserMemory(tmp_path / "users.db", limits=MemoryLimits(notes=1), durable=False)
    tools = allowed(memory, "ada")
    tools.record("one")
    with pytest.raises(MemoryLimitError):
        tools.record(CANARY)
    assert [event.body["text"] for event in memory.reader("ada").events()] == ["one"]
    memory.close()


def test_a_user_who_is_forgotten_while_they_are_read_breaks_no_recall(
    memory: UserMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = allowed(memory, "ada")
    tools.record("one")
    monkeypatch.setattr(SqlHandle, "evidence", lambda handle: {})  # as it is then
    assert [note["evidence"] for note in tools.recall()] == [[]]


def test_the_command_leaves_a_decision_as_it_is_and_serves_nobody_who_refused(
    memory: UserMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[str] = []
    monkeypatch.setattr(memory_tools, "make_server", lambda tools: SimpleNamespace(run=served.append))
    said = memory.set_consent("ada", store=True, train=True)
    refusal = memory.set_consent("eve", store=False, train=False)
    for user in ("ada", "ada", "new"):
        ServeMemory(str(tmp_path / "users.db"), user, store=True).run()
    with pytest.raises(ConsentError, match="refused"):
        ServeMemory(str(tmp_path / "users.db"), "eve", store=True).run()
    ServeMemory(str(tmp_path / "users.db"), "eve", store=False).run()
    assert memory.consent("ada") == said and memory.consent("eve") == refusal and len(served) == 4
    assert memory.consent("new").store and not memory.consent("new").train


@pytest.mark.slow
def test_ten_thousand_calls_in_random_order_mix_no_users(tmp_path: Path) -> None:
    memory = UserMemory(str(tmp_path / "users.db"), durable=False)
    names = [f"user{number}" for number in range(12)]
    tools, rng, kept = {name: allowed(memory, name) for name in names}, random.Random(5), {name: [] for name in names}
    for number in range(10_000):
        name = rng.choice(names)
        if number % 50 == 0 and len(kept[name]) < 40:
            kept[name].append(tools[name].record(f"secret of {name}: word{number % 7}")["note"])
        elif number % 997 == 0 and kept[name]:
            tools[name].forget(kept[name].pop())
        elif number % 101 == 0:
            stranger = rng.choice([key for other in names if other != name for key in kept[other]] or ["none"])
            with pytest.raises(DataError):
                tools[name].correct(stranger, {"text": "stolen"})
        else:
            said = json.dumps(tools[name].recall(f"secret of {rng.choice(names)} word3", most=3))
            assert said.count("secret of ") == said.count(f"secret of {name}:")
    assert sorted(note.key for note in memory.reader("user3").notes()) == sorted(kept["user3"])


def test_the_command_refuses_what_is_no_memory_and_a_missing_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match="no such file"):
        ServeMemory(str(tmp_path / "none.db"), "ada").run()
    UserMemory(str(tmp_path / "users.db")).close()
    monkeypatch.setitem(__import__("sys").modules, "mcp.server.mcpserver", None)
    with pytest.raises(ConfigError, match=r"pip install '.\[mcp\]'"):
        ServeMemory(str(tmp_path / "users.db"), "ada").run()


def test_over_the_protocol_no_tool_takes_a_user_and_refusals_are_told(memory: UserMemory) -> None:
    pytest.importorskip("mcp")
    from mcp import Client

    async def talk() -> dict[str, Any]:
        async with Client(make_server(MemoryTools(memory, "ada"))) as client:
            listed = {tool.name: tool for tool in (await client.list_tools()).tools}
            refused = await client.call_tool("record", {"text": CANARY})
            memory.set_consent("ada", store=True, train=False)
            made = await client.call_tool("record", {"text": CANARY, "user": "ben"})
            seen = await client.call_tool("recall", {"about": CANARY})
            gone = await client.call_tool("forget", {"everything": True})
        return {"listed": listed, "refused": refused, "made": made, "seen": seen, "gone": gone}

    said = asyncio.run(talk())
    assert set(said["listed"]) == {"recall", "record", "correct", "forget"}
    for tool in said["listed"].values():
        assert "user" not in tool.input_schema["properties"] and tool.description
    assert said["listed"]["recall"].annotations.read_only_hint and said["listed"]["forget"].annotations.destructive_hint
    assert said["refused"].is_error and "store=true" in said["refused"].content[0].text
    assert not said["made"].is_error and memory.known("ben") is None
    assert CANARY in said["seen"].content[0].text and not said["gone"].is_error
    assert memory.known("ada") is None
