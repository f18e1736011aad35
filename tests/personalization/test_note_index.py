"""Indexes of notes: users are apart whoever writes last, and FAISS finds what a plain comparison finds."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from user_memory_toy import SECRET

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.generation.wrappers import ScriptedGenerator
from finegrained_rlhf.personalization import (
    Cipher,
    Coreset,
    CotEdit,
    Draft,
    ExactConflicts,
    FaissIndex,
    FeedbackRemark,
    HashedWords,
    IclEdit,
    Pahf,
    SourceDocument,
    UserMemory,
)
from finegrained_rlhf.personalization.learners.base import MemoryAgent
from finegrained_rlhf.personalization.learners.conversation import PossibleAnswers
from finegrained_rlhf.personalization.learners.pahf import ChosenAction
from finegrained_rlhf.personalization.retrieval import ExactIndex, NoteIndex, to_bytes
from finegrained_rlhf.personalization.store.protocol import NoteChange, UserHandle

D = 6


class Vectors:
    """A text is the seed of its vector; of few values, so that many notes are equally near."""

    identity = "seeds"

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        rows = [np.random.default_rng(int(text)).integers(-1, 2, D) + 0.25 for text in texts]
        return np.stack([row / np.linalg.norm(row) for row in rows]).astype(np.float32)


def write(handle: UserHandle, key: str, seed: int, event: str, made_by: str = "seeds") -> None:
    note = handle.note(key)
    vector = to_bytes(Vectors().encode([str(seed)])[0])
    body = {"encoder": made_by, "seed": seed, "of": handle.identity}
    change = NoteChange(key, body, vector, 0 if note is None else note.version)
    handle.apply(handle.record(event, "edit", {}), [change])


def sought(handle: UserHandle, query: str, k: int) -> list[float]:
    """The k highest similarities among the user's notes, by hand."""
    wanted = Vectors().encode([query])[0].astype(float)
    own = [float(Vectors().encode([str(note.body["seed"])])[0].astype(float) @ wanted) for note in handle.notes()]
    return sorted(own, reverse=True)[:k]


@pytest.mark.parametrize("index", [FaissIndex(), FaissIndex(users=1), ExactIndex()], ids=["faiss", "faiss-1", "exact"])
def test_users_who_write_in_turns_find_their_own_notes(index: FaissIndex | ExactIndex, tmp_path: Path) -> None:
    memory, rng, encoder = UserMemory(tmp_path / "users.db", durable=False), np.random.default_rng(0), Vectors()
    handles = [memory.user("ada"), memory.user("eve")]
    for turn in range(60):
        for handle in handles:  # the same keys; some are changed later on
            write(handle, f"n{rng.integers(25)}", int(rng.integers(1000)), f"e{turn}")
        query, k = str(rng.integers(1000)), int(rng.integers(1, 8))
        for handle in handles:
            found = index.nearest(handle, encoder, query, k)
            assert found == ExactIndex().nearest(handle, encoder, query, k)
            assert len(found) == min(k, len(handle.notes()))
            assert all(note.body["of"] == handle.identity for note in found)
            ours = [float(encoder.encode([str(note.body["seed"])])[0] @ encoder.encode([query])[0]) for note in found]
            assert np.allclose(ours, sought(handle, query, k), atol=1e-6)
    least = sought(handles[0], "5", 3)[-1]
    found = index.nearest(handles[0], encoder, "5", 20, least - 1e-6)
    assert len(found) >= 3 and found == ExactIndex().nearest(handles[0], encoder, "5", 20, least - 1e-6)


def test_many_notes_at_once_and_another_process(tmp_path: Path) -> None:
    memory, other = (UserMemory(tmp_path / "users.db", durable=False) for _ in range(2))
    index, encoder = FaissIndex(), Vectors()
    writer, reader = memory.user("ada"), other.user("ada")
    assert index.nearest(reader, encoder, "1", 3) == []
    for number in range(150):
        write(writer, f"n{number}", number, f"e{number}")
    assert index.nearest(reader, encoder, "1", 30) == ExactIndex().nearest(reader, encoder, "1", 30)
    write(writer, "n1", 7, "later")
    assert index.nearest(reader, encoder, "1", 30) == ExactIndex().nearest(reader, encoder, "1", 30)
    wider = HashedWords(dimension=64)  # whoever asks with another encoder is told so, as by `ExactIndex`
    with pytest.raises(DataError, match="another encoder"):
        index.nearest(reader, wider, "1", 3)
    write(writer, "odd", 1, "odd", made_by="another")
    with pytest.raises(DataError, match="another encoder"):
        index.nearest(reader, encoder, "1", 3)
    memory.forget("ada")
    assert index.nearest(reader, encoder, "1", 3) == []
    assert index.nearest(other.user("ada"), encoder, "1", 3) == []
    with pytest.raises(ConfigError):
        FaissIndex(users=0)


TEXTS = ("trains to the sea", "bread and butter", "butter on trains", "bread of the sea")


class Counted(HashedWords):
    """Counts the texts that were encoded."""

    texts = 0

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        Counted.texts += len(texts)
        return super().encode(texts)


def made(kind: Callable[..., MemoryAgent], memory: UserMemory, places: int, index: NoteIndex) -> MemoryAgent:
    llm = ScriptedGenerator(lambda prompt: json.dumps(REPLY if "finished text alone" not in prompt else {"draft": 1}))
    encoder = Counted(places)
    if kind is Coreset:
        return Coreset(memory, llm, ExactConflicts(), k=2, encoder=encoder)
    return kind(memory, llm, k=2, encoder=encoder, index=index)


REPLY = {"preference": "short", "text": "a draft", "salient": "yes", "cues": "", "answers": ["Rome"], "choice": "1"}


def learns(agent: MemoryAgent, text: str) -> None:
    if isinstance(agent, Pahf):
        REPLY.update(note=text, operation="add", number="1")
        agent.observe_feedback("ada", ChosenAction(text, "a drink", 0, "tea"), text)
    elif isinstance(agent, Coreset):
        agent.observe_turn("ada", PossibleAnswers(text, "Where?", ("Rome",)), FeedbackRemark(text, "city", "Rome"))
    else:
        agent.observe_edit("ada", text, Draft(text, "a draft"), "another")


def retrieves(agent: MemoryAgent, text: str) -> tuple[str, ...]:
    if isinstance(agent, Pahf):
        return tuple(key.removesuffix("/feedback") for key in agent.act("ada", text, ["tea"]).retrieved)
    if isinstance(agent, Coreset):
        return agent.answer("ada", [SourceDocument("1", "Rome.", {"city": "Rome"})], text).rests_on
    return agent.respond("ada", text).retrieved


@pytest.mark.parametrize("index", [FaissIndex, ExactIndex])
@pytest.mark.parametrize("kind", [Cipher, IclEdit, CotEdit, Pahf, Coreset])
def test_another_encoder_gets_vectors_of_its_own(
    kind: Callable[..., MemoryAgent], index: type[FaissIndex] | type[ExactIndex], tmp_path: Path
) -> None:
    memory, fresh = (UserMemory(tmp_path / name, durable=False) for name in ("users.db", "fresh.db"))
    was, wider = made(kind, memory, 64, index()), made(kind, memory, 512, index())
    always = made(kind, fresh, 512, index())
    for text in TEXTS:
        learns(was, text)
        learns(always, text)
    versions = memory.user("ada").versions()
    assert len(retrieves(was, "bread and trains")) == 2
    for question in ("bread and trains", "the sea"):
        assert retrieves(wider, question) == retrieves(always, question) != ()
    assert memory.user("ada").versions() == versions
    notes = memory.user("ada").notes()
    assert notes == [
        replace(note, event=ours.event, valid_from=ours.valid_from)
        for note, ours in zip(fresh.user("ada").notes(), notes, strict=True)
    ]
    assert {note.body["encoder"] for note in notes} == {"hashed words 512"}
    Counted.texts = 0
    retrieves(wider, "the sea")
    assert Counted.texts <= 2  # the question alone
    learns(was, "a note of the process that has the old encoder")
    assert len(memory.user("ada").notes()) == 5 and len(retrieves(wider, "old encoder")) == 2


def test_a_learner_with_an_index_learns_and_forgets(tmp_path: Path) -> None:
    memory, index = UserMemory(tmp_path / "users.db", durable=False), FaissIndex()
    learner = Cipher(memory, ScriptedGenerator(lambda prompt: '{"preference": "short"}'), k=2, index=index)
    for context in ("trains", "bread", "bread and butter"):
        learner.observe_edit("ada", context, learner.respond("ada", context, key=context), SECRET)
    found = learner.respond("ada", "butter")
    assert found.retrieved == ("bread and butter", "bread") and [place[0] for place in index._kept] == [
        memory.user("ada").identity
    ]
    assert learner.forget("ada") and not index._kept
    assert learner.respond("ada", "butter").retrieved == ()
