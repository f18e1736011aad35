"""`forget` comes in the middle of a round, after any call of the store, of kept answers and of the language model.

Another process forgets the user there (its own opening of the files). The round may end or be refused: nothing of the
user is left then, and nothing of anybody else is gone.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from stores import PostgresStore, SqliteStore, Store
from user_memory_toy import SECRET

from finegrained_rlhf.core.generation.protocol import Generation
from finegrained_rlhf.core.generation.wrappers import CachedGenerator
from finegrained_rlhf.personalization import (
    ChainOfThought,
    Cipher,
    Continual,
    Coreset,
    CotEdit,
    ExploreThenExploit,
    FaissIndex,
    FeedbackRemark,
    FullMemory,
    HashedWords,
    IclEdit,
    InContext,
    ModelConflicts,
    NoLearning,
    Oracle,
    Pahf,
    Scratchpad,
    SourceDocument,
    SummarisedMemory,
)
from finegrained_rlhf.personalization.learners.base import Learner, MemoryAgent
from finegrained_rlhf.personalization.learners.conversation import ConversationAgent, HoldingRemarks, WithoutMemory
from finegrained_rlhf.personalization.learners.coreset import RandomWindow
from finegrained_rlhf.personalization.store.protocol import ForgottenUserError, MemoryStore
from finegrained_rlhf.runtime.remote.cache import AnswerCache

DOCUMENTS = [SourceDocument("1", "Ada studied law in Rome."), SourceDocument("2", "Ada studied art in Oslo.")]


@dataclass
class Calls:
    """Counts what was called, and does something after the call of a number."""

    at: int = 0
    work: Callable[[], Any] = lambda: None
    count: int = 0

    def returned(self) -> None:
        self.count += 1
        if self.count == self.at:
            self.work()


class Watched:
    """A store, one of its handles, or where answers are kept: each call is counted when it has returned."""

    def __init__(self, inner: Any, calls: Calls) -> None:
        self._inner, self._calls = inner, calls

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if not callable(value):
            return value

        def called(*args: Any, **keys: Any) -> Any:
            result = value(*args, **keys)
            self._calls.returned()
            return Watched(result, self._calls) if hasattr(result, "answer_owner") else result

        return called


@dataclass
class Echo:
    """A language model whose replies repeat the canary where it stands in the prompt, in the form that is asked for."""

    calls: Calls = field(default_factory=Calls)
    identity: str = "echo"

    def generate(self, prompt: str, schema: Any = None) -> Generation:
        text = f"{SECRET if SECRET in prompt else 'an answer'} {zlib.crc32(prompt.encode())}"
        fields = ("preference", "text", "cues", "note", "summary", "reasoning", "question", "answer")
        chosen = {
            "decision": "ask",
            "salient": "yes",
            "choice": "1",
            "operation": "merge",
            "number": "1",
            "conflict": "no",
        }
        reply = json.dumps({**dict.fromkeys(fields, text), **chosen, "answers": [text]})
        self.calls.returned()
        return Generation(text if "Reply with the finished text alone" in prompt else reply, 1, 1)


@dataclass
class Scene:
    """A memory and a file of answers, opened once more by everybody who uses them."""

    store: Store
    answers: Path
    make: Callable[[MemoryStore, CachedGenerator], MemoryAgent]

    @contextmanager
    def agent(self, calls: Calls | None = None) -> Iterator[MemoryAgent]:
        """An agent whose store, kept answers and language model are watched."""
        calls = calls or Calls()
        memory, answers = self.store.open(), AnswerCache(self.answers, "echo")
        yield self.make(Watched(memory, calls), CachedGenerator(Echo(calls), Watched(answers, calls)))
        memory.close()
        answers.close()

    def forget(self) -> None:
        """Forget the user, as another process does."""
        with self.agent() as agent:
            agent.forget(SECRET)

    def traces(self) -> list[str]:
        """The files in which the canary is."""
        self.store.settle()
        files = [path for path in self.answers.parent.glob("answers.db*") if SECRET.encode() in path.read_bytes()]
        return [*self.store.traces(SECRET), *(path.name for path in files)]

    def stored(self, user: str) -> Any:
        """What is stored of a user; None where there is none."""
        memory = self.store.open()
        handle = memory.known(user)
        found = None if handle is None else (handle.events(), handle.notes(), handle.evidence())
        memory.close()
        return found

    def kept(self) -> set[str]:
        """Digests of the prompts whose answers are kept."""
        with closing(sqlite3.connect(self.answers)) as file:
            return {digest for (digest,) in file.execute("SELECT question FROM answers")}


def in_files(directory: Path, name: str) -> Scene:
    directory.mkdir(exist_ok=True)
    return Scene(SqliteStore(directory), directory / "answers.db", AGENTS[name])


def a_round(agent: MemoryAgent, user: str, number: int) -> None:
    """What a user does with an agent, with texts of the user's own."""
    says, key = f"{user} says {number}", f"{user}-{number}"
    if isinstance(agent, Learner):
        agent.observe_edit(user, f"about {says}", agent.respond(user, f"about {says}", key), says)
    elif isinstance(agent, Pahf):
        action = agent.act(user, f"a drink, {says}", ["tea", "coffee"], lambda question: f"answer {says}", key)
        agent.observe_feedback(user, action, says)
    else:
        assert isinstance(agent, ConversationAgent)
        agent.observe_turn(user, agent.answer(user, DOCUMENTS, f"Where, {says}?", key), FeedbackRemark(says))


def coreset(kind: type[Coreset], selection: str, memory: MemoryStore, llm: CachedGenerator) -> Coreset:
    return kind(memory, llm, ModelConflicts(llm), selection)


AGENTS: dict[str, Callable[[MemoryStore, CachedGenerator], MemoryAgent]] = {
    "cipher": partial(Cipher, k=2),
    "cipher with another encoder": partial(Cipher, k=2, encoder=HashedWords(64)),
    "cipher with FAISS": lambda memory, llm: Cipher(memory, llm, k=2, index=FaissIndex()),
    "pahf": partial(Pahf, similarity=-1.0),
    "coreset": partial(coreset, Coreset, "recency"),
    "coreset greedy": partial(coreset, Coreset, "greedy"),
    "coreset largest": partial(coreset, Coreset, "largest"),
    "random window": partial(coreset, RandomWindow, "recency"),
    "holding remarks": lambda memory, llm: HoldingRemarks(memory, llm, lambda key: [f"{SECRET}-0"]),
    "no learning": NoLearning,
    "oracle": lambda memory, llm: Oracle(memory, llm, lambda context: f"as {context}"),
    "explore then exploit": partial(ExploreThenExploit, rounds=2),
    "continual": Continual,
    "icl": IclEdit,
    "cot": CotEdit,
    "pahf pre": partial(Pahf, feedback="pre"),
    "pahf post": partial(Pahf, feedback="post"),
    "without memory": WithoutMemory,
    "in context": InContext,
    "chain of thought": ChainOfThought,
    "full memory": FullMemory,
    "scratchpad": Scratchpad,
    "summarised memory": SummarisedMemory,
}
FEW = ("cipher", "pahf", "coreset")


def begin(scene: Scene, rounds: int) -> set[str]:
    """Rounds before the one that is disturbed; gives the answers that are kept of the other user."""
    with scene.agent() as agent:
        a_round(agent, "stays", 0)
        kept = scene.kept()
        for number in range(rounds):
            a_round(agent, SECRET, number - rounds + 1)
    return kept


def forget_after_any_call(
    prepared: Callable[[int], Scene], kept: set[str], work: Callable[[MemoryAgent], Any], few: int
) -> None:
    """Work as often as it makes calls, with `forget` after the first of them, the second, and so on.

    Args:
        prepared: a scene in which the work comes next, made anew for each number.
        kept: answers that must stay.
        work: of the user.
        few: least calls that it makes.
    """
    whole, undisturbed = Calls(), prepared(0)
    with undisturbed.agent(whole) as agent:
        work(agent)
    assert len(undisturbed.traces()) >= 2 and undisturbed.stored(SECRET)  # the search finds what is there
    assert kept and whole.count >= few
    for at in range(1, whole.count + 1):
        scene = prepared(at)
        calls, others = Calls(at, scene.forget), scene.stored("stays")
        with scene.agent(calls) as agent:
            with suppress(ForgottenUserError):
                work(agent)
            assert calls.count >= at and scene.traces() == [], f"after call {at}"
            assert scene.stored(SECRET) is None, f"after call {at}"
        assert others and scene.stored("stays") == others and kept <= scene.kept(), f"after call {at}"


def learnt_again(scene: Scene) -> None:
    """The user's events were written down, and nothing was derived from them yet."""
    with closing(sqlite3.connect(scene.answers.parent / "users.db")) as file, file:
        (number,) = file.execute("SELECT id FROM users WHERE name = ?", (SECRET,)).fetchone()
        for table in ("notes", "evidence", "versions"):
            file.execute(f"DELETE FROM {table} WHERE user = ?", (number,))
        file.execute("UPDATE events SET applied = 0 WHERE user = ?", (number,))


NAMES = [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in AGENTS]


@pytest.mark.parametrize("rounds", [0, 2])
@pytest.mark.parametrize("name", NAMES)
def test_forget_after_any_call_of_a_round(name: str, rounds: int, tmp_path: Path) -> None:
    kept = begin(in_files(tmp_path / "first", name), rounds)

    def prepared(at: int) -> Scene:
        shutil.copytree(tmp_path / "first", tmp_path / str(at))
        return in_files(tmp_path / str(at), name)

    forget_after_any_call(prepared, kept, lambda agent: a_round(agent, SECRET, 1), few=6)


def test_forget_after_any_call_of_another_edit(tmp_path: Path) -> None:
    kept = begin(in_files(tmp_path / "first", "cipher"), 1)

    def prepared(at: int) -> Scene:
        shutil.copytree(tmp_path / "first", tmp_path / str(at))
        return in_files(tmp_path / str(at), "cipher")

    def work(agent: MemoryAgent) -> None:
        assert isinstance(agent, Learner)
        draft = agent.respond(SECRET, f"about {SECRET}")
        for edited in (SECRET, f"{SECRET} again"):
            agent.observe_edit(SECRET, f"about {SECRET}", draft, edited)

    forget_after_any_call(prepared, kept, work, few=12)


def test_forget_after_any_call_while_vectors_are_made_anew(tmp_path: Path) -> None:
    kept = begin(in_files(tmp_path / "first", "cipher"), 2)

    def prepared(at: int) -> Scene:
        shutil.copytree(tmp_path / "first", tmp_path / str(at))
        return in_files(tmp_path / str(at), "cipher with another encoder")

    forget_after_any_call(prepared, kept, lambda agent: a_round(agent, SECRET, 1), few=10)


@pytest.mark.slow
@pytest.mark.parametrize("name", AGENTS)
def test_forget_after_any_call_of_catching_up(name: str, tmp_path: Path) -> None:
    first = in_files(tmp_path / "first", name)
    kept = begin(first, 2)
    learnt_again(first)

    def prepared(at: int) -> Scene:
        shutil.copytree(tmp_path / "first", tmp_path / str(at))
        return in_files(tmp_path / str(at), name)

    forget_after_any_call(prepared, kept, lambda agent: agent.catch_up(SECRET), few=4)


@pytest.mark.slow
@pytest.mark.parametrize("name", FEW)
def test_forget_after_any_call_on_a_server(name: str, tmp_path: Path, server: tuple[str, Path]) -> None:
    kept: set[str] = set()
    stores: list[PostgresStore] = []

    def prepared(at: int) -> Scene:
        for store in stores:
            store.drop()
        stores[:] = [PostgresStore(*server)]
        (tmp_path / str(at)).mkdir()
        scene = Scene(stores[0], tmp_path / str(at) / "answers.db", AGENTS[name])
        kept.update(begin(scene, 1))
        return scene

    prepared(-1)
    forget_after_any_call(prepared, kept, lambda agent: a_round(agent, SECRET, 1), few=6)
