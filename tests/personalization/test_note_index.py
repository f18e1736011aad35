"""Indexes of notes: users are apart whoever writes last, and FAISS finds what a plain comparison finds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from user_memory_toy import SECRET

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.generation.wrappers import ScriptedGenerator
from finegrained_rlhf.personalization import Cipher, FaissIndex, HashedWords, UserMemory
from finegrained_rlhf.personalization.retrieval.index import ExactIndex
from finegrained_rlhf.personalization.retrieval.nearest import to_bytes
from finegrained_rlhf.personalization.store.protocol import UserHandle
from finegrained_rlhf.personalization.store.records import NoteChange

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


def test_a_learner_with_an_index_learns_and_forgets(tmp_path: Path) -> None:
    memory, index = UserMemory(tmp_path / "users.db", durable=False), FaissIndex()
    learner = Cipher(memory, ScriptedGenerator(lambda prompt: '{"preference": "short"}'), k=2, index=index)
    for context in ("trains", "bread", "bread and butter"):
        learner.observe_edit("ada", context, learner.respond("ada", context, key=context), SECRET)
    found = learner.respond("ada", "butter")
    assert found.retrieved == ("bread and butter", "bread") and [place for place, _ in index._kept] == [
        memory.user("ada").identity
    ]
    assert learner.forget("ada") and not index._kept
    assert learner.respond("ada", "butter").retrieved == ()
