"""What answers prompts: a script, an endpoint, a policy of ours; and the wrappers that count and keep answers."""

from __future__ import annotations

import hashlib
import logging
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from remote_toy import KEY, FakeService

from finegrained_rlhf.core.errors import ConfigError, DataError, ModelError
from finegrained_rlhf.core.generation.asking import ask
from finegrained_rlhf.core.generation.outcomes import (
    FailedReplyError,
    RefusedReplyError,
    ReplyError,
    UnreadableReplyError,
)
from finegrained_rlhf.core.generation.protocol import LONGEST_TEXT, Generation, words_and_marks
from finegrained_rlhf.core.generation.schema import Choice, ReplySchema
from finegrained_rlhf.core.generation.wrappers import (
    AnswerOwner,
    CachedGenerator,
    Expense,
    MemoryAnswers,
    MeteredGenerator,
    ScriptedGenerator,
    asked_for,
)
from finegrained_rlhf.inference import LocalGenerator, load_policy
from finegrained_rlhf.inference.generator import PolicyGenerator
from finegrained_rlhf.models.tiny import TinyLlamaConfig
from finegrained_rlhf.models.tiny_networks import build_llama, build_tokenizer, causal_tokenizer
from finegrained_rlhf.runtime import EndpointGenerator, RemoteConfig
from finegrained_rlhf.runtime.remote.cache import AnswerCache
from finegrained_rlhf.runtime.remote.client import RemoteError


def test_words_and_marks() -> None:
    assert words_and_marks("It's 3 o'clock —\n ok?") == ["It", "'", "s", "3", "o", "'", "clock", "—", "ok", "?"]


def test_a_script() -> None:
    script = ScriptedGenerator(["one two", ""])
    assert script.generate("a b c") == Generation("one two", 3, 2) and script.generate("x") == Generation("", 1, 0)
    with pytest.raises(ConfigError, match="2 texts"):
        script.generate("y")
    assert ScriptedGenerator(str.upper).generate("ab").text == "AB"


def test_a_meter_outside_counts_what_was_asked_and_inside_what_was_paid() -> None:
    inside = MeteredGenerator(ScriptedGenerator(str.upper))
    outside = MeteredGenerator(CachedGenerator(inside))
    for prompt in ("a b", "a b", "c"):
        assert outside.generate(prompt).text == prompt.upper()
    assert outside.expense == Expense(3, 5, 5) and inside.expense == Expense(2, 3, 3)
    outside.clear()
    outside.generate("a b")
    assert inside.expense.calls == 3


def test_a_call_that_fails_is_neither_counted_nor_kept() -> None:
    meter = MeteredGenerator(CachedGenerator(ScriptedGenerator([])))
    with pytest.raises(ConfigError):
        meter.generate("a")
    assert meter.expense == Expense()


def test_odd_replies_are_counted_and_empty_ones_are_not_kept() -> None:
    replies = iter(['{"choice": "2"}', "Sorry.", "", " ", "a text", '{"choice": 1}'])
    meter = MeteredGenerator(ScriptedGenerator(lambda prompt: next(replies)))
    llm, schema = CachedGenerator(meter), ReplySchema({"choice": Choice(("1", "2"))})
    odd = []
    for asked in (schema, schema, None, None, None, None, schema):
        llm.generate("free" if asked is None else f"choose {len(odd) % 6}", asked)
        odd.append(meter.expense.odd)
    assert odd == [0, 1, 2, 3, 3, 3, 3] and meter.expense.calls == 5  # a text is kept, and so is what was read
    refused = MeteredGenerator(ScriptedGenerator(refuse))
    with pytest.raises(RefusedReplyError):
        refused.generate("a")
    assert refused.expense == Expense(odd=1)


def test_a_text_longer_than_any_that_is_taken_is_odd_and_not_kept() -> None:
    meter = MeteredGenerator(ScriptedGenerator(["x" * (LONGEST_TEXT + 1), "x" * LONGEST_TEXT + " "]))
    llm = CachedGenerator(meter)
    assert [len(llm.generate("a").text.strip()) - LONGEST_TEXT for _ in range(3)] == [1, 0, 0]
    assert (meter.expense.calls, meter.expense.odd) == (2, 1)


def refuse(prompt: str) -> str:
    raise RefusedReplyError("the service will not answer")


def test_answers_in_memory_have_a_limit() -> None:
    kept = MemoryAnswers(2)
    for name in "abc":
        kept.put(name, name)
    assert kept.get("abc") == {"b": "b", "c": "c"}
    with pytest.raises(ConfigError):
        MemoryAnswers(0)


def test_answers_on_disk_are_dropped_without_a_trace(tmp_path: Path) -> None:
    mine, other = (AnswerCache(tmp_path / "answers.sqlite", name) for name in ("mine", "other"))
    for cache, text in ((mine, "canary of mine"), (other, "canary of another")):
        asked = CachedGenerator(ScriptedGenerator([text]), cache)
        assert asked.generate("x").text == text == asked.generate("x").text
    CachedGenerator(ScriptedGenerator([]), mine).clear()
    content = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"canary of mine" not in content and b"canary of another" in content
    assert mine.get(["x"]) == {} and other.get(["x"])["x"]["text"] == "canary of another"


@pytest.mark.parametrize("on_disk", [True, False])
def test_answers_are_dropped_by_owner_and_late_ones_are_not_kept(on_disk: bool, tmp_path: Path) -> None:
    kept = AnswerCache(tmp_path / "answers.db", "mine") if on_disk else MemoryAnswers()
    ada, eve = AnswerOwner("a", "1", 3), AnswerOwner("e", "2", 0)
    later = replace(ada, epoch=4)
    asked = CachedGenerator(ScriptedGenerator(lambda prompt: f"canary of {prompt}"), kept)
    with asked_for(ada):
        asked.generate("ada")
        with asked_for(eve):
            asked.generate("eve")
        asked.generate("ada too")
    asked.generate("nobody")
    with asked_for(later):
        asked.generate("ada later")
    asked.clear(later)
    prompts = ["ada", "ada too", "nobody", "eve", "ada later", "late"]
    assert set(kept.get(prompts)) == {"eve", "ada later"}
    with asked_for(ada):  # it began before
        assert asked.generate("late").text == "canary of late"
    asked.clear(ada)  # an epoch never goes back
    kept.put("late", {}, ada)
    assert set(kept.get(prompts)) == {"eve", "ada later"}
    kept.put("late", {"text": "in time"}, later)
    assert kept.get(["late"]) == {"late": {"text": "in time"}}
    files = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"canary of ada" not in files.replace(b"canary of ada later", b"") and b"canary of late" not in files


def test_answers_from_before_they_had_owners(tmp_path: Path) -> None:
    path, digest = tmp_path / "answers.db", hashlib.sha256(b"x").hexdigest()
    old = sqlite3.connect(path)
    old.executescript(
        """
        CREATE TABLE sources (id INTEGER PRIMARY KEY, identity TEXT NOT NULL UNIQUE);
        CREATE TABLE answers (
            source INTEGER NOT NULL, question TEXT NOT NULL, answer TEXT NOT NULL, PRIMARY KEY (source, question)
        ) WITHOUT ROWID;
        INSERT INTO sources VALUES (1, 'mine'), (2, 'other');
        """
    )
    with old:
        old.executemany("INSERT INTO answers VALUES (?, ?, ?)", [(1, digest, '"canary"'), (2, digest, '"of others"')])
    old.close()
    assert AnswerCache(path, "mine", read_only=True).get(["x"]) == {"x": "canary"}
    for _ in range(2):
        mine = AnswerCache(path, "mine")
        assert mine.get(["x"]) == {"x": "canary"}
    mine.clear(AnswerOwner("ada", "1", 1))  # whose they are is not known
    assert mine.get(["x"]) == {} and AnswerCache(path, "other").get(["x"]) == {"x": "of others"}
    assert b"canary" not in b"".join(file.read_bytes() for file in tmp_path.iterdir())


def test_answers_that_could_not_be_overwritten_are_at_the_next_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "answers.db"
    kept, owner = AnswerCache(path, "mine"), AnswerOwner("ada", "1", 0)
    monkeypatch.setattr("finegrained_rlhf.runtime.remote.cache._PATIENCE_S", 0.2)
    kept.put("x", "canary", owner)
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM answers").fetchall()
    with pytest.raises(DataError, match="try again"):
        kept.clear(replace(owner, epoch=1))
    assert kept.get(["x"]) == {} and b"canary" in b"".join(file.read_bytes() for file in tmp_path.iterdir())
    reader.close()
    AnswerCache(path, "mine")
    assert b"canary" not in b"".join(file.read_bytes() for file in tmp_path.iterdir())


def chat(content: Any = "hello there", finish: Any = "stop", usage: Any = None) -> dict[str, Any]:
    return {"choices": [{"message": {"content": content}, "finish_reason": finish}], "usage": usage}


def endpoint(service: FakeService, budget_s: float = 5.0, **keys: Any) -> EndpointGenerator:
    return EndpointGenerator(RemoteConfig(service.url, backoff_s=0.01, budget_s=budget_s), "m", **keys)


def test_an_endpoint() -> None:
    with FakeService(lambda body: chat(usage={"prompt_tokens": 7, "completion_tokens": 2})) as service:
        assert endpoint(service, max_tokens=9, top_p=0.5).generate("say it") == Generation("hello there", 7, 2)
        (sent,) = service.requests
        assert sent == {
            "model": "m",
            "max_tokens": 9,
            "temperature": 0.0,
            "top_p": 0.5,
            "messages": [{"role": "user", "content": "say it"}],
        }
    with FakeService(lambda body: chat()) as service:  # counts nothing: words are counted
        assert endpoint(service).generate("say it now") == Generation("hello there", 3, 2)


@pytest.mark.parametrize("finish", [None, "stop", "STOP", "eos_token", "stop_sequence", "end_turn"])
def test_servers_name_the_end_of_a_text_as_they_like(finish: Any) -> None:
    with FakeService(lambda body: chat(finish=finish)) as service:
        assert endpoint(service).generate("x").text == "hello there"


def test_an_endpoint_that_is_busy_is_asked_again() -> None:
    with FakeService(lambda body: chat()) as service:
        service.fault = lambda number, body: (503, {}) if number < 2 else None
        assert endpoint(service).generate("x").text == "hello there" and len(service.requests) == 3


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (chat(finish="length"), UnreadableReplyError),
        (chat(finish="MAX_TOKENS"), UnreadableReplyError),
        (chat(finish="content_filter"), RefusedReplyError),
        (chat(finish="tool_calls"), RefusedReplyError),
        (chat(finish=["stop"]), RefusedReplyError),
        (chat(None), RefusedReplyError),
        ((400, {"error": {"code": "content_filter"}}), RefusedReplyError),
        ((422, {"error": {"message": "what a user wrote is bad"}}), FailedReplyError),
    ],
)
def test_an_answer_that_asking_again_does_not_change_is_an_error_at_once(answer: Any, error: type[ReplyError]) -> None:
    with FakeService(lambda body: answer) as service:
        with pytest.raises(error) as raised:
            endpoint(service).generate("Look at what a user wrote is bad")
        assert len(service.requests) == 1 and "a user wrote" not in str(raised.value)


def test_a_reply_that_cannot_be_used_is_paid_for() -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 20}
    for answer in (chat(finish="length", usage=usage), chat(None, usage=usage)):
        with FakeService(lambda body, answer=answer: answer) as service:  # type: ignore[misc]
            meter = MeteredGenerator(endpoint(service))
            with pytest.raises(ReplyError):
                meter.generate("x")
            assert meter.expense == Expense(calls=1, tokens_in=100, tokens_out=20, odd=1)


def test_a_text_in_parts_is_a_text_and_impossible_counts_are_not_believed() -> None:
    parts = [{"type": "text", "text": "hello "}, {"type": "text", "text": "there"}]
    with FakeService(lambda body: chat(parts, usage={"prompt_tokens": 1e200, "completion_tokens": 2})) as service:
        assert endpoint(service).generate("say it now") == Generation("hello there", 3, 2)
    with FakeService(lambda body: chat([{"type": "image"}, *parts])) as service, pytest.raises(RefusedReplyError):
        endpoint(service).generate("x")


def test_half_a_character_is_odd_and_not_kept(tmp_path: Path) -> None:
    meter = MeteredGenerator(ScriptedGenerator(["half \ud83d", "whole"]))
    kept = CachedGenerator(meter, AnswerCache(tmp_path / "answers.sqlite", "m"))
    assert [kept.generate("x").text for _ in range(3)] == ["half \ud83d", "whole", "whole"]
    assert meter.expense.odd == 1 and meter.expense.calls == 2


def test_a_prompt_that_is_never_answered_in_time_fails_alone() -> None:
    def slow(body: dict[str, Any]) -> Any:
        if "slow" in body["messages"][-1]["content"]:
            time.sleep(0.3)
        return chat()

    with FakeService(slow) as service:
        model = EndpointGenerator(RemoteConfig(service.url, backoff_s=0.01, budget_s=30.0, timeout_s=0.1), "m")
        assert model.generate("fast").text == "hello there"
        with pytest.raises(FailedReplyError, match="given up after 5 tries"):
            model.generate("slow")
        assert model.generate("fast again").text == "hello there"


def test_a_schema_is_sent_where_there_is_one_and_a_system_message() -> None:
    schema = ReplySchema({"choice": Choice(("1", "2"))}, name="pick")
    with FakeService(lambda body: chat('{"choice": "2"}')) as service:
        asked = endpoint(service, system="Be short.")
        assert ask(asked, "Which?", schema).value == {"choice": "2"} and asked.generate("Say.").tokens_in == 5
        first, second = service.requests
        assert first["response_format"]["json_schema"]["schema"] == schema.json_schema()
        assert first["response_format"]["json_schema"]["name"] == "pick" and "response_format" not in second
        assert first["messages"][0] == {"role": "system", "content": "Be short."}


def test_an_endpoint_that_fails_at_one_prompt_answers_the_others() -> None:
    with FakeService(lambda body: chat()) as service:
        service.fault = lambda number, body: (500, {}) if "odd" in body["messages"][-1]["content"] else None
        asked = endpoint(service, budget_s=0.2)
        with pytest.raises(RemoteError, match="given up"):  # nothing was ever answered
            asked.generate("odd")
        asked = endpoint(service)
        assert asked.generate("x").text == "hello there"
        with pytest.raises(FailedReplyError, match="given up after 5 tries"):
            asked.generate("odd")
        assert asked.generate("y").text == "hello there"


def test_a_refused_connection_is_said_at_once(caplog: pytest.LogCaptureFixture) -> None:
    with FakeService(lambda body: chat()) as service:
        url = service.url
    asked = EndpointGenerator(RemoteConfig(url, backoff_s=0.01, longest_wait_s=0.05, budget_s=0.3), "m")
    with caplog.at_level(logging.WARNING), pytest.raises(RemoteError):
        asked.generate("x")
    (line,) = [record.message for record in caplog.records]
    assert line.startswith(f"{url} cannot be reached") and "budget_s=0.3" in line


@pytest.mark.parametrize("answer", [{"choices": []}, {"error": "x"}, {"choices": [{"message": "x"}]}])
def test_an_answer_without_a_text_is_given_up(answer: dict[str, Any]) -> None:
    with FakeService(lambda body: answer) as service, pytest.raises(RemoteError, match="given up"):
        endpoint(service, budget_s=0.05).generate("x")


def test_a_key_is_never_in_the_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", KEY)
    one = EndpointGenerator(RemoteConfig("http://localhost/v1", key_variable="A_KEY"), "m")
    assert KEY not in one.identity and "http://localhost/v1" in one.identity
    assert one.identity != EndpointGenerator(RemoteConfig("http://localhost/v1"), "m", temperature=0.5).identity
    for wrong in ({"max_tokens": 0}, {"temperature": -1.0}, {"top_p": 0.0}):
        with pytest.raises(ConfigError):
            EndpointGenerator(RemoteConfig("http://localhost/v1"), "m", **wrong)


@torch.no_grad()
def _most_likely(policy: PolicyGenerator, prompt: str, values: list[str]) -> str:
    """By transformers' own loss, one answer after the other."""
    sums = []
    for value in values:
        answer = policy.tokenizer(f'{{"color": "{value}"}}', add_special_tokens=False, return_tensors="pt").input_ids
        ids = torch.cat([policy.tokenizer(prompt, return_tensors="pt").input_ids, answer], dim=1)
        logprobs = policy.policy.model(ids).logits.log_softmax(dim=-1)[0, -answer.shape[1] - 1 : -1]
        sums.append(float(logprobs.gather(1, answer[0][:, None]).sum()))
    assert sorted(sums)[-1] - sorted(sums)[-2] > 1e-3  # no tie, which any answer would win
    return values[sums.index(max(sums))]


def test_a_policy_of_ours(tmp_path: Path) -> None:
    values = ["red", "of", "Rome"]
    texts = ["the color of Ana is red. the city is Rome.", *(f'{{"color": "{value}"}}' for value in values)]
    tokenizer = causal_tokenizer(build_tokenizer(texts), 64)
    with torch.random.fork_rng():
        build_llama(tokenizer, TinyLlamaConfig(d_model=32, max_length=64), seed=4).save_pretrained(tmp_path / "llama")
    tokenizer.save_pretrained(tmp_path / "llama")
    prompt = "the color of Ana"
    made = LocalGenerator(str(tmp_path / "llama"), max_new_tokens=8, device="cpu").generate(prompt)
    policy = load_policy(tmp_path / "llama", device="cpu")
    assert made.text == policy.generate([prompt], max_new_tokens=8)[0][0]
    assert made.tokens_in == len(policy.tokenizer(prompt).input_ids) and 0 <= made.tokens_out <= 8
    assert LocalGenerator(policy, max_new_tokens=8).generate(prompt) == made
    chosen = ask(LocalGenerator(policy), prompt, ReplySchema({"color": Choice(tuple(values))}))
    assert chosen.tries == 1 and chosen.value["color"] == _most_likely(policy, prompt, values)
    for text, kind, error in (
        (" ", DataError, "empty"),
        ("the color " * 40, FailedReplyError, "tokens, the limit is 16$"),
    ):
        with pytest.raises(kind, match=error):
            LocalGenerator(policy, 8, max_prompt_tokens=16).generate(text)
    with pytest.raises(ModelError):
        LocalGenerator(tmp_path / "nothing").generate(prompt)
    with pytest.raises(ConfigError):
        LocalGenerator(policy, 0)


def test_calls_of_threads_were_counted_as_one() -> None:
    def slow(prompt: str) -> str:
        time.sleep(0.01)
        return prompt

    meter = MeteredGenerator(ScriptedGenerator(slow))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(meter.generate, ["a b", ""] * 20))
    assert meter.expense == Expense(40, 40, 40, odd=20)
