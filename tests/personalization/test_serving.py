"""Many users at once: asyncio, learning apart from requests, and nobody's notes in another's prompt."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from crowd_toy import USERS, Crowd, named
from numpy.typing import NDArray
from stores import Store
from user_memory_toy import SECRET

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.generation.wrappers import ScriptedGenerator
from finegrained_rlhf.personalization import (
    AsyncUserMemory,
    AsyncUsers,
    Cipher,
    FaissIndex,
    HashedWords,
    LearningWorker,
    NoteDecision,
    UserMemory,
)
from finegrained_rlhf.personalization.learners.base import Draft
from finegrained_rlhf.personalization.serving import BusyError, UserThreads
from finegrained_rlhf.personalization.store.protocol import (
    Event,
    ForgottenUserError,
    MemoryStore,
    NoteConflictError,
    StoreError,
    UserHandle,
)


def writer(prompt: str) -> str:
    """A preference that names the owner whose words the prompt has."""
    owners = sorted(named(prompt))
    return json.dumps({"preference": f"likes {' '.join(owners)}"}) if "preference" in prompt else f"Text {owners}"


def test_the_package_needs_no_torch() -> None:
    names = "AsyncUserMemory, Cipher, Coreset, EndpointContexts, Pahf, UserMemory"
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


def test_work_after_the_end_was_queued_and_waited_for_without_end(tmp_path: Path) -> None:
    threads, worker = UserThreads(), LearningWorker()
    threads.close()
    for _ in range(2):
        with pytest.raises(BusyError):
            threads.submit("ada", lambda: None)
    threads.settle()
    worker.close()
    memory = UserMemory(tmp_path / "users.db", durable=False)
    cipher = Cipher(memory, ScriptedGenerator(writer))
    cipher.worker = worker
    cipher.observe_edit("owner1", "c", Draft("k", "A text."), "A text of owner1.")  # is in the log
    worker.close()
    assert len(memory.user("owner1").pending()) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_after_a_fork_no_thread_did_the_work_of_the_child() -> None:
    threads = UserThreads()
    assert threads.submit("ada", lambda: 1).result(20) == 1
    if not (child := os.fork()):
        try:
            os._exit(threads.submit("ada", lambda: 7).result(20))
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    threads.close()


def test_a_forgotten_edit_was_sent_to_the_model_and_a_waiting_one_twice(memory: MemoryStore) -> None:
    go = threading.Event()

    def blocked(prompt: str) -> str:
        assert go.wait(20)
        return json.dumps({"preference": "short"})

    llm = ScriptedGenerator(blocked)
    cipher, worker = Cipher(memory, llm), LearningWorker()
    cipher.worker = worker
    for _ in range(3):
        cipher.observe_edit("ada", "c", Draft("first", "A long draft."), "A draft.")
    cipher.observe_edit("ada", "c", Draft("second", "A long draft."), f"A {SECRET}.")
    cipher.observe_edit("ben", "c", Draft("first", "A long draft."), "A draft.")
    cipher.observe_edit("ben", "c", Draft("first", "A long draft."), "A draft.")
    while not llm.prompts:
        time.sleep(0.002)
    assert cipher.forget("ada")
    go.set()
    worker.close()
    assert len(llm.prompts) == 2 and SECRET not in "".join(llm.prompts)  # one of each user
    assert len(memory.user("ben").notes()) == 1


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


def test_another_edit_of_a_draft_in_asyncio_and_by_the_worker(memory: MemoryStore) -> None:
    cipher, users, worker = Cipher(memory, ScriptedGenerator(writer), k=1), AsyncUsers(), LearningWorker()
    cipher.worker = worker

    async def serve(name: str) -> None:
        draft = await users.call(cipher.respond, name, f"about {name}", key="k")
        edits = ("Short.", "Short.", "Short verse.", "Short verse.")  # each comes again
        costs = [users.call(cipher.observe_edit, name, f"about {name}", draft, edited) for edited in edits]
        first, again, second, last = [cost.distance for cost in await asyncio.gather(*costs)]
        assert (first, second) == (again, last)

    async def all_users() -> None:
        await asyncio.gather(*(serve(f"owner{number}") for number in range(6)))

    asyncio.run(all_users())
    worker.close()
    users.threads.close()
    for number in range(6):
        handle = memory.user(f"owner{number}")
        assert [event.body["edited"] for event in handle.events()] == ["Short.", "Short verse."]
        assert handle.pending() == [] and len(handle.notes()) == 2


def interleave(store: Store, steps: int, seed: int) -> tuple[int, int, Counter[str]]:
    """Several threads learn, decide on notes, export, import and forget for the same few users.

    Half of the agents have another encoder, and half of them learn by a worker. Returns how many prompts there were, in
    how many states notes are, and how often each thing was done.
    """
    crowd, done = Crowd(), Counter[str]()

    class Remade(HashedWords):
        def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
            done["vectors made anew"] += len(texts) > 1
            return super().encode(texts)

    class Learns(Cipher):
        def learn(self, handle: UserHandle, event: Event) -> None:
            if threading.current_thread().name.startswith("users"):
                crowd.turn_of(event.body["context"].split()[0])
                done["by the worker"] += 1
            super().learn(handle, event)

    model = ScriptedGenerator(lambda prompt: writer(crowd.heard(prompt)))
    memories, worker = [store.open(), store.open()], LearningWorker(2, pause_s=0.0)
    agents = [
        Learns(memory, model, k=3, encoder=Remade(places), index=FaissIndex(users=2))
        for memory in memories
        for places in (1024, 256)
    ]
    agents[1].worker = agents[2].worker = worker

    def step(number: int) -> bool:
        chance = random.Random(seed * 1_000_003 + number)
        user, agent = chance.choice(USERS), agents[number % 4]
        crowd.turn_of(user)
        handle, context = agent.memory.reader(user), f"{user} writes about {chance.choice(('dogs', 'rain', 'law'))}"
        actions = ["list", "correct", "correct", "delete", "hold", "release", "expire", "import", "catch up"]
        action = chance.choice(["learn"] * 6 + actions)
        try:
            if chance.random() < 0.02:
                agent.forget(user)
            elif action == "learn":
                draft = agent.respond(user, context, key=f"k{chance.randrange(40)}-{number}")
                agent.observe_edit(user, context, draft, f"{draft.text} but {user} wants {number}")
                return "owner" not in draft.preference or user in draft.preference
            elif action == "catch up":
                agent.catch_up(user)
            elif action == "import":
                data = agent.memory.export_user(user)
                assert named(json.dumps(data)) == {user}
                agent.forget(user)
                agent.memory.import_user(data)
            else:
                notes = handle.notes(unused=True)
                assert all(user in json.dumps(note.body) for note in notes if note.state != "deleted")
                if notes and action != "list":
                    note = chance.choice(notes)
                    body = {"preference": f"{user} by hand {number}"} if action == "correct" else {}
                    if note.state != "deleted":
                        handle.decide(NoteDecision(note.key, action, body, expected=note.version))
            done[action] += 1
        except (ForgottenUserError, NoteConflictError):
            pass  # another thread was quicker
        except StoreError as error:
            assert "not yet overwritten" in str(error)
        except DataError as error:
            assert action == "import" and error.field == "user"  # nobody to export, or entered again meanwhile
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(step, range(steps)))
    worker.close()
    states = {note.state for user in USERS for note in memories[0].reader(user).notes(unused=True)}
    for memory in memories:
        memory.close()
    return len(crowd), len(states), done


def test_no_note_is_in_the_prompt_of_another(tmp_path: Path, store: Store, caplog: pytest.LogCaptureFixture) -> None:
    prompts, states, done = interleave(store, 160, 1)
    assert prompts > 50 and states > 1
    assert min(done[name] for name in ("import", "catch up", "by the worker", "vectors made anew")) > 1, done
    assert "AssertionError" not in caplog.text  # of a thread of the worker


@pytest.mark.slow
def test_no_note_is_in_the_prompt_of_another_in_ten_thousand_steps(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    prompts, states, done = interleave(store, 10_000, 2)
    assert prompts > 5_000 and states > 1
    assert min(done[name] for name in ("import", "catch up", "by the worker", "vectors made anew")) > 100, done
    assert "AssertionError" not in caplog.text


def test_nothing_is_left_of_who_is_forgotten_while_others_learn(store: Store) -> None:
    memory, go, begun = store.open(), threading.Event(), threading.Event()

    def reply(prompt: str) -> str:
        if '"edits"' in prompt:
            begun.set()
            assert go.wait(20)
        return json.dumps({"preference": SECRET})

    cipher, worker, users = Cipher(memory, ScriptedGenerator(reply)), LearningWorker(2), AsyncUserMemory(memory)
    other = Cipher(memory, ScriptedGenerator(reply), encoder=HashedWords(64), index=FaissIndex())
    cipher.worker = worker

    async def a_round(user: str, key: str) -> None:
        draft = await users.call(cipher.respond, user, f"{key} about {user}", key=f"{key} of {user}")
        await users.call(cipher.observe_edit, user, f"{key} about {user}", draft, f"{user} short")

    def traces() -> list[str]:
        store.settle()
        return store.traces(SECRET)

    async def serve() -> None:
        go.set()
        await a_round(SECRET, "learnt")
        worker.settle()
        await users.call(other.respond, SECRET, "again")  # vectors are made anew
        await users.decide(SECRET, NoteDecision(f"learnt of {SECRET}", "correct", {"preference": f"{SECRET} by hand"}))
        data = await users.export_user(SECRET)
        for again in (False, True):
            go.clear()
            begun.clear()
            await a_round(SECRET, "begun")
            assert begun.wait(20) and traces() and await users.notes(SECRET)
            assert await (users.call(other.forget, SECRET) if again else users.forget(SECRET))
            assert traces() == []  # while the worker's language model still thinks about it
            go.set()
            worker.settle()
            assert traces() == [] and memory.known(SECRET) is None
            await users.import_user(SECRET, data)
            assert traces() and await users.history(SECRET)
        assert await users.forget(SECRET) and traces() == []

    asyncio.run(serve())
    worker.close()
    users.threads.close()
    memory.close()


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
