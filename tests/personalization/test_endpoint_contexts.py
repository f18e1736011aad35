"""Contexts as vectors that an endpoint of embeddings gives, against a service with the real schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from remote_toy import KEY, FakeService, embeddings

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.generation.outcomes import FailedReplyError
from finegrained_rlhf.core.generation.wrappers import ScriptedGenerator
from finegrained_rlhf.personalization import Cipher, Draft, EndpointContexts, HashedWords, UserMemory
from finegrained_rlhf.runtime import RemoteConfig
from finegrained_rlhf.runtime.remote.client import RemoteError

PLACES = {"small": 64, "large": 512}
TEXTS = ["trains to the sea", "bread and butter", " ", "butter on trains", "bread of the sea"]


def longer(body: dict[str, Any]) -> Any:
    """Vectors three times as long as those of hashed words, of a size that goes by the model."""
    encoder = HashedWords(PLACES[body["model"]])
    return embeddings(lambda texts: (3 * encoder.encode(texts)).tolist())(body)


@pytest.fixture
def service() -> Iterator[FakeService]:
    with FakeService(longer, KEY) as fake:
        yield fake


@pytest.fixture
def contexts(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> EndpointContexts:
    monkeypatch.setenv("OUR_KEY", KEY)
    remote = RemoteConfig(service.url, "OUR_KEY", backoff_s=0.001, longest_wait_s=0.01, budget_s=0.05)
    return EndpointContexts(remote, "small", {"user": "nobody"}, batch_size=2)


def test_each_text_has_its_vector_of_length_1(service: FakeService, contexts: EndpointContexts) -> None:
    vectors = contexts.encode(TEXTS)
    assert vectors.dtype == np.float32 and np.allclose(vectors, HashedWords(64).encode(TEXTS), atol=1e-6)
    assert not vectors[2].any() and sorted(len(body["input"]) for body in service.requests) == [2, 2]
    assert all(body["model"] == "small" and body["user"] == "nobody" for body in service.requests)
    assert contexts.encode([" "]).shape == (1, 64) and contexts.encode([]).shape == (0, 64)


def test_its_identity_has_all_that_vectors_depend_on_and_no_key(contexts: EndpointContexts) -> None:
    others = [
        replace(contexts, model="large"),
        replace(contexts, extra_body={"dimensions": 32}),
        replace(contexts, remote=replace(contexts.remote, url="http://localhost/v1/embeddings")),
    ]
    assert len({one.identity for one in (contexts, *others)}) == 4 and KEY not in contexts.identity
    assert replace(contexts, batch_size=9).identity == contexts.identity
    with pytest.raises(ConfigError, match="input"):
        replace(contexts, extra_body={"input": "more"})


def row(index: int, *vector: Any) -> dict[str, Any]:
    return {"index": index, "embedding": list(vector)}


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ([row(0, 1.0), row(1, 1.0, 2.0)], "without a vector"),
        ([row(0, 1.0), row(2, 1.0)], "without a vector"),
        ([row(0, 1.0), row(0, 1.0)], "without a vector"),
        ([row(0, "one"), row(1, "two")], "without a vector"),
        ([row(0), row(1)], "without a vector"),
        ([], "without a vector"),
        ("none", "without a vector"),
        ([row(0, 1.0), row(1, float("nan"))], "not finite"),
        ([row(0, 1.0)], "a vector for each text"),
    ],
)
def test_answers_that_are_none(service: FakeService, contexts: EndpointContexts, data: Any, problem: str) -> None:
    service.fault = lambda number, body: {"data": data}
    with pytest.raises(RemoteError, match=problem) as raised:
        contexts.encode(["trains", "bread"])
    assert "\n" not in str(raised.value)


def test_a_model_that_changes_between_two_requests(service: FakeService, contexts: EndpointContexts) -> None:
    service.fault = lambda number, body: longer({**body, "model": "large"}) if number else None
    with pytest.raises(RemoteError, match="all of one length"):
        contexts.encode(["trains", "bread", "sea"])


def test_another_model_gets_vectors_of_its_own(contexts: EndpointContexts, tmp_path: Path) -> None:
    llm = ScriptedGenerator(lambda prompt: json.dumps({"preference": "short"}))
    memory, fresh = (UserMemory(tmp_path / name, durable=False) for name in ("users.db", "fresh.db"))
    large = replace(contexts, model="large")
    for store, encoder in ((memory, contexts), (fresh, large)):
        for text in ("trains to the sea", "bread and butter", "butter on trains"):
            Cipher(store, llm, encoder=encoder).observe_edit("ada", text, Draft(text, "a draft"), "another")
    found = Cipher(memory, llm, k=2, encoder=large).respond("ada", "a train, and butter on bread").retrieved
    assert found == Cipher(fresh, llm, k=2, encoder=large).respond("ada", "a train, and butter on bread").retrieved
    assert len(found) == 2
    notes = memory.user("ada").notes()
    assert {note.body["encoder"] for note in notes} == {large.identity}
    assert [note.vector for note in notes] == [note.vector for note in fresh.user("ada").notes()]


def test_an_edit_whose_context_is_refused_is_tried_again(
    service: FakeService, contexts: EndpointContexts, tmp_path: Path
) -> None:
    llm = ScriptedGenerator(lambda prompt: json.dumps({"preference": "short"}))
    memory = UserMemory(tmp_path / "users.db", durable=False)
    cipher = Cipher(memory, llm, encoder=contexts)
    service.fault = lambda number, body: (400,)
    with pytest.raises(FailedReplyError):
        cipher.observe_edit("ada", "trains", Draft("k", "a draft"), "another")
    assert [event.tries for event in memory.user("ada").pending()] == [1]
    service.fault = lambda number, body: (503,)
    with pytest.raises(RemoteError, match="given up"):
        cipher.catch_up("ada")
    assert [event.tries for event in memory.user("ada").pending()] == [1]  # out of reach: no try
    service.fault = lambda number, body: None
    assert cipher.catch_up("ada") == 1 and cipher.respond("ada", "trains").retrieved == ("k",)
