"""Many users at once: asyncio, learning apart from requests, and nobody's notes in another's prompt."""

from __future__ import annotations

import asyncio
import json
import random
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from stores import Store

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.generation.wrappers import ScriptedGenerator
from finegrained_rlhf.personalization import (
    AsyncUserMemory,
    AsyncUsers,
    Cipher,
    FaissIndex,
    LearningWorker,
    NoteDecision,
    UserMemory,
)
from finegrained_rlhf.personalization.learners.base import Draft
from finegrained_rlhf.personalization.serving import BusyError, UserThreads
from finegrained_rlhf.personalization.store.protocol import (
    ForgottenUserError,
    MemoryStore,
    NoteConflictError,
    StoreError,
)


def writer(prompt: str) -> str:
    """A preference that names the owner whose words the prompt has."""
    owners = sorted(set(re.findall(r"owner\d", prompt)))
    return json.dumps({"preference": f"likes {' '.join(owners)}"}) if "preference" in prompt else f"Text {owners}"


def test_the_package_needs_no_torch() -> None:
    names = "AsyncUserMemory, Cipher, Coreset, Pahf, UserMemory"
    script = f"import sys; from finegrained_rlhf.personalization import {names}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_threads_keep_the_order_of_a_user() -> None:
    threads, done = UserThreads(4, waiting=60), list[tuple[int, int]]()
    running: set[int] = set()

    def work(user: int, number: int) -> None:
        assert user not in running
        running.add(user)
        time.sleep(0.0005)
        running.discard(user)
        done.append((user, number))

    futures = [threads.submit(number % 6, lambda n=number: work(n % 6, n)) for number in range(60)]
    with pytest.raises(BusyError):
        for _ in range(100):
            threads.submit(7, lambda: time.sleep(0.02))
    threads.close()
    assert [future.result() for future in futures] == [None] * 60
    for user in range(6):
        assert [number for one, number in done if one == user] == list(range(user, 60, 6))
    with pytest.raises(ConfigError):
        UserThreads(0)


def test_the_event_loop_goes_on(memory: MemoryStore) -> None:
    def slow(prompt: str) -> str:
        time.sleep(0.02)
        return writer(prompt)

    cipher, store = Cipher(memory, ScriptedGenerator(slow), k=1), AsyncUserMemory(memory)

    async def serve() -> int:
        beats, ended = 0, False

        async def beat() -> None:
            nonlocal beats
            while not ended:
                beats += 1
                await asyncio.sleep(0.002)

        async def user(number: int) -> None:
            name = f"owner{number}"
            draft = await store.call(cipher.respond, name, f"about {name}", key="k")
            await store.call(cipher.observe_edit, name, f"about {name}", draft, f"What {name} wants.")
            (note,) = await store.notes(name)
            assert note.body["preference"] == f"likes {name}"
            await store.decide(name, NoteDecision("k", "correct", {"preference": "verse"}))
            assert (await store.call(cipher.respond, name, f"about {name}")).preference == "verse"
            data = await store.export_user(name)
            assert await store.forget(name) and await store.notes(name) == []
            await store.import_user(name, data)
            assert len(await store.history(name)) == 1
            await store.set_consent(name, store=True, train=False)

        heart = asyncio.create_task(beat())
        await asyncio.gather(*map(user, range(8)))
        ended = True
        await heart
        return beats

    assert asyncio.run(serve()) > 10
    store.threads.close()


def test_learning_is_not_waited_for(memory: MemoryStore) -> None:
    go, replies = threading.Event(), ["no JSON", "no JSON", json.dumps({"preference": "short"})]

    def blocked(prompt: str) -> str:
        if '"edits"' not in prompt:
            return "A draft."
        assert go.wait(20)
        return replies.pop(0) if replies else "no JSON"

    cipher, worker = Cipher(memory, ScriptedGenerator(blocked)), LearningWorker(pause_s=0.0)
    cipher.worker = worker
    for key in ("first", "second"):
        assert cipher.observe_edit("ada", "c", Draft(key, "A long draft."), "A draft.").distance
    assert cipher.respond("ada", "c").preference == "" and len(memory.user("ada").pending()) == 2
    go.set()
    worker.settle()
    assert [note.key for note in memory.user("ada").notes()] == ["first"]
    assert [event.key for event in cipher.set_aside("ada")] == ["second"]  # the dead letter
    replies.append(json.dumps({"preference": "long"}))
    assert cipher.catch_up("ada", again=True) == 1
    go.clear()
    cipher.observe_edit("eve", "c", Draft("k", "A long draft."), "A draft.")
    cipher.forget("eve")
    go.set()
    worker.close()
    assert memory.known("eve") is None


def interleave(store: Store, steps: int, seed: int) -> tuple[int, int]:
    """Several threads learn, list, correct, delete and forget for the same few users; how many prompts, and drafts."""
    own, prompts = threading.local(), list[str]()

    def reply(prompt: str) -> str:
        owners = set(re.findall(r"owner\d", prompt))
        assert owners == {own.user}, (own.user, owners)
        prompts.append(prompt)
        return writer(prompt)

    memories = [store.open(), store.open()]
    agents = [Cipher(memory, ScriptedGenerator(reply), k=3, index=FaissIndex(users=2)) for memory in memories]

    def step(number: int) -> bool:
        chance = random.Random(seed * 1_000_003 + number)
        user, agent = f"owner{chance.randrange(4)}", agents[number % 2]
        own.user = user
        handle, context = agent.memory.reader(user), f"{user} writes about {chance.choice(('dogs', 'rain', 'law'))}"
        actions = ["list", "correct", "correct", "delete", "hold", "release", "expire"]
        action = chance.choice(["learn"] * 4 + actions)
        try:
            if chance.random() < 0.02:
                agent.forget(user)
            elif action == "learn":
                draft = agent.respond(user, context, key=f"k{chance.randrange(40)}-{number}")
                agent.observe_edit(user, context, draft, f"{draft.text} but {user} wants {number}")
                return "owner" not in draft.preference or user in draft.preference
            else:
                notes = handle.notes(unused=True)
                assert all(user in json.dumps(note.body) for note in notes if note.state != "deleted")
                if notes and action != "list":
                    note = chance.choice(notes)
                    body = {"preference": f"{user} by hand {number}"} if action == "correct" else {}
                    if note.state != "deleted":
                        handle.decide(NoteDecision(note.key, action, body, expected=note.version))
        except (ForgottenUserError, NoteConflictError):
            pass  # another thread was quicker
        except StoreError as error:
            assert "not yet overwritten" in str(error)
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(step, range(steps)))
    states = {note.state for number in range(4) for note in memories[0].reader(f"owner{number}").notes(unused=True)}
    for memory in memories:
        memory.close()
    return len(prompts), len(states)


def test_no_note_is_in_the_prompt_of_another(tmp_path: Path, store: Store) -> None:
    prompts, states = interleave(store, 120, 1)
    assert prompts > 50 and states > 1


@pytest.mark.slow
def test_no_note_is_in_the_prompt_of_another_in_ten_thousand_steps(store: Store) -> None:
    prompts, states = interleave(store, 10_000, 2)
    assert prompts > 5_000 and states > 1


@pytest.mark.slow
def test_a_thousand_users_at_once(tmp_path: Path) -> None:
    memory = UserMemory(tmp_path / "users.db", durable=False)
    cipher, users, worker = Cipher(memory, ScriptedGenerator(writer)), AsyncUsers(), LearningWorker()
    cipher.worker = worker
    seconds: list[float] = []

    async def serve(number: int) -> None:
        await asyncio.sleep(number / 50)
        began, name = time.perf_counter(), f"owner{number}"
        draft = await users.call(cipher.respond, name, "about rain")
        seconds.append(time.perf_counter() - began)
        await users.call(cipher.observe_edit, name, "about rain", draft, "Short.")

    async def all_users() -> None:
        await asyncio.gather(*map(serve, range(1000)))

    asyncio.run(all_users())
    worker.close()
    users.threads.close()
    assert len(seconds) == 1000 and sum(len(memory.user(f"owner{number}").notes()) for number in range(1000)) == 1000
    print(f"p95 of respond: {sorted(seconds)[950] * 1000:.1f} ms")
    memory.close()
