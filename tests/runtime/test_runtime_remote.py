"""Requests to a service: within its quota, again after faults, given up in time; answers on disk; no key anywhere."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import socket
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from remote_toy import KEY, FakeService, toxicity

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.runtime import RemoteConfig
from finegrained_rlhf.runtime.remote import client as client_module
from finegrained_rlhf.runtime.remote.answers import UnintelligibleAnswer, wait_before
from finegrained_rlhf.runtime.remote.cache import AnswerCache
from finegrained_rlhf.runtime.remote.client import Call, RemoteClient, RemoteError, TokenBucket


def config(url: str, **settings: Any) -> RemoteConfig:
    return RemoteConfig(url, **{"backoff_s": 0.001, "longest_wait_s": 0.01, "budget_s": 20.0, **settings})


def call(text: str) -> Call:
    comment = {"text": text, "type": "PLAIN_TEXT"}
    return Call({"comment": comment, "languages": ["en"], "requestedAttributes": {"TOXICITY": {}}, "doNotStore": True})


def value(answer: dict[str, Any]) -> float:
    found = answer["attributeScores"]["TOXICITY"]["summaryScore"]["value"]
    if found is None:
        raise UnintelligibleAnswer("null")
    return found


def asked(client: RemoteClient, texts: list[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    client.ask([call(text) for text in texts], value, lambda number, score: found.update({texts[number]: score}))
    return found


TEXTS = [f"text {number}" for number in range(60)]
TRUE = {text: toxicity(text) for text in TEXTS}


def test_every_call_is_answered_several_at_once() -> None:
    with FakeService() as service:
        true = service.answer
        # The first ones take so long that others come meanwhile.
        service.answer = lambda body: true(body) if len(service.requests) > 8 else time.sleep(0.1) or true(body)
        assert asked(RemoteClient(config(service.url, concurrency=4)), TEXTS) == TRUE
        assert 1 < service.busiest <= 4 and set(service.asked.values()) == {1}
        assert asked(RemoteClient(config(service.url)), []) == {}


def test_connections_are_kept_from_one_call_to_the_next() -> None:
    with FakeService() as service:
        client = RemoteClient(config(service.url, concurrency=2))
        for text in TEXTS[:10]:
            assert asked(client, [text]) == {text: TRUE[text]}
        assert service.connections == 1
        with ThreadPoolExecutor(6) as threads:
            answers = list(threads.map(lambda text: asked(client, [text]), TEXTS))
        assert answers == [{text: TRUE[text]} for text in TEXTS] and service.connections <= 2


def test_a_forked_process_asks_over_connections_of_its_own() -> None:
    with FakeService() as service:
        client = RemoteClient(config(service.url))
        assert asked(client, TEXTS[:1]) == {TEXTS[0]: TRUE[TEXTS[0]]}
        if (child := os.fork()) == 0:
            os._exit(asked(client, TEXTS[1:3]) != {text: TRUE[text] for text in TEXTS[1:3]})
        assert os.waitpid(child, 0)[1] == 0
        assert asked(client, TEXTS[3:4]) == {TEXTS[3]: TRUE[TEXTS[3]]}
        assert service.connections <= 1 + 2  # one of this process, which goes on, and those of the other


NULL = {"attributeScores": {"TOXICITY": {"summaryScore": {"value": None, "type": "PROBABILITY"}}}}
FAULTS: dict[str, Any] = {
    "429": (429,),
    "429, asked to wait": (429, {"Retry-After": "0"}),
    "500": (500,),
    "503": (503, {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}),
    "half an answer": b'{"attributeScores": {"TOXI',
    "null": NULL,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_that_pass_change_no_answer(fault: str) -> None:
    with FakeService() as service:
        service.fault = lambda number, body: FAULTS[fault] if number < 20 or number % 3 == 0 else None
        assert asked(RemoteClient(config(service.url)), TEXTS) == TRUE
        assert set(service.asked.values()) == {1} and len(service.requests) >= 60 + 20


def test_a_service_that_is_slow_is_asked_again() -> None:
    with FakeService() as service:
        true, slow = service.answer, iter(range(3))

        def late(body: dict[str, Any]) -> Any:
            if next(slow, None) is not None:
                asyncio.run(asyncio.sleep(0.6))
            return true(body)

        service.answer = late
        assert asked(RemoteClient(config(service.url, timeout_s=0.2)), TEXTS[:5]) == {t: TRUE[t] for t in TEXTS[:5]}
        assert len(service.requests) >= 5 + 3


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_that_stay_end_in_one_error_and_what_was_answered_is_kept(fault: str) -> None:
    found: dict[str, float] = {}
    with FakeService() as service:
        service.fault = lambda number, body: FAULTS[fault] if body["comment"]["text"] == TEXTS[30] else None
        client = RemoteClient(config(service.url, budget_s=0.05, concurrency=2))
        with pytest.raises(RemoteError, match=r"analyze: given up after \d+ tr(y|ies) in \d s, the last one: "):
            client.ask(
                [call(text) for text in TEXTS], value, lambda number, score: found.update({TEXTS[number]: score})
            )
    assert TEXTS[30] not in found and all(found[text] == TRUE[text] for text in found)
    assert set(TEXTS[:29]) <= set(found)


def test_an_answer_that_drips_is_given_up_in_time() -> None:
    """Every byte comes within `timeout_s`; the whole answer does not."""
    stop = threading.Event()

    def drip(listener: socket.socket) -> None:
        while not stop.is_set():
            client, _ = listener.accept()
            with client, contextlib.suppress(OSError):
                client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
                while not stop.wait(0.02):
                    client.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=drip, args=(listener,), daemon=True).start()
        with pytest.raises(RemoteError, match="the last one: no answer in time"):
            here = config(f"http://127.0.0.1:{listener.getsockname()[1]}/x", timeout_s=0.2, budget_s=0.3)
            asked(RemoteClient(here), TEXTS[:1])
        stop.set()


def test_a_service_that_is_not_there() -> None:
    with FakeService() as service:
        url = service.url
    with pytest.raises(RemoteError, match=r"given up after \d+ tr(y|ies) in \d s, the last one: .*[Cc]onnect"):
        asked(RemoteClient(config(url, budget_s=0.02)), TEXTS[:3])


def test_a_request_that_is_refused_is_not_repeated() -> None:
    with FakeService() as service:
        with pytest.raises(RemoteError, match="the request was refused: status 400, .*comment is empty"):
            asked(RemoteClient(config(service.url, concurrency=1)), [""])
        assert len(service.requests) == 1


def test_the_key_is_read_from_its_variable_and_stands_in_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def headers(key: str) -> dict[str, str]:
        return {"X-Goog-Api-Key": key}

    with FakeService(key=KEY) as service:
        here = config(service.url, key_variable="SOME_KEY")
        with pytest.raises(ConfigError, match="expected a key in the environment variable SOME_KEY"):
            RemoteClient(here, headers)
        with caplog.at_level("DEBUG"):
            monkeypatch.setenv("SOME_KEY", KEY)
            assert asked(RemoteClient(here, headers), TEXTS[:3]) == {text: TRUE[text] for text in TEXTS[:3]}
            assert not any(KEY in path for path in service.paths)
            monkeypatch.setenv("SOME_KEY", "another-key-0815")
            with pytest.raises(ConfigError, match=r"status 403, .*\[key\] is not valid.* the key is that of SOME_KEY"):
                asked(RemoteClient(here, headers), TEXTS[:3])
            monkeypatch.setenv("SOME_KEY", "k" * 400)  # longer than what an error shows of an answer
            with pytest.raises(ConfigError, match=r"the key \[key\] is not valid"):
                asked(RemoteClient(here, headers), TEXTS[:3])
            with pytest.raises(ConfigError, match="no key was given: key_variable"):
                asked(RemoteClient(config(service.url)), TEXTS[:3])
    assert KEY not in caplog.text and "another-key-0815" not in caplog.text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"url": "localhost:80"}, "url: expected http://HOST"),
        ({"url": "https://user:secret@host/x"}, "no user, password or key"),
        ({"url": "https://host/x?key=secret"}, "no user, password or key"),
        ({"concurrency": 0}, "concurrency: expected at least 1, got 0"),
        ({"items_per_s": 0.0}, "items_per_s: expected null or above 0, got 0.0"),
        ({"budget_s": None}, "budget_s: expected a finite number, got None"),
        ({"timeout_s": float("inf")}, "timeout_s: expected a finite number, got inf"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        RemoteConfig(**{"url": "http://host/x", **settings})
    assert "secret" not in str(error.value)


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(client_module.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(client_module.asyncio, "sleep", self.sleep)

    async def sleep(self, seconds: float) -> None:
        self.now += seconds

    def times(self, bucket: TokenBucket, *items: int) -> list[float]:
        """When each request may go, in seconds from now."""

        async def take() -> list[float]:
            turn, found = asyncio.Lock(), []
            for number in items:
                await bucket.take(number, turn)
                found.append(self.now - began)
            return found

        began = self.now
        return asyncio.run(take())


def test_the_quota_is_of_items(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    assert clock.times(TokenBucket(2.0, burst=1), 1, 1, 1) == pytest.approx([0.0, 0.5, 1.0])
    assert clock.times(TokenBucket(2.0, burst=4), 1, 3, 1, 4, 2) == pytest.approx([0.0, 0.0, 0.5, 2.5, 3.5])
    assert clock.times(TokenBucket(2.0, burst=1), 1, 10, 1) == pytest.approx([0.0, 5.0, 5.5])
    assert clock.times(TokenBucket(None), 5, 5) == [0.0, 0.0]
    rested = TokenBucket(2.0, burst=3)
    clock.times(rested, 3)
    clock.now += 1000
    assert clock.times(rested, 3, 1) == pytest.approx([0.0, 0.5])  # no more than the burst was saved


def test_a_bucket_that_the_service_closed_lets_nothing_through(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    for bucket in (TokenBucket(None), TokenBucket(100.0, burst=5)):
        bucket.close(7.0)
        bucket.close(3.0)
        assert clock.times(bucket, 1) == pytest.approx([7.0])


def test_waits_double_up_to_the_longest_and_follow_the_server() -> None:
    for tries in range(1, 60):
        assert 0.75 * 2 ** (tries - 1) <= wait_before(tries, 1.0, 1e30) <= 1.25 * 2 ** (tries - 1) or tries > 31
        assert wait_before(tries, 1.0, 8.0) <= 10.0
        assert (
            5.0 <= wait_before(1, 1.0, 8.0, retry_after_s=5.0) <= 6.25
            and 8.0 <= wait_before(1, 1.0, 8.0, retry_after_s=500.0) <= 10.0
        )
    assert len({wait_before(50, 1.0, 8.0) for _ in range(10)}) > 1  # not all come back at once


def test_a_running_loop_is_not_disturbed() -> None:
    """As in a notebook."""

    async def cell() -> dict[str, float]:
        return asked(RemoteClient(config(service.url)), TEXTS[:3])

    with FakeService() as service:
        assert asyncio.run(cell()) == {text: TRUE[text] for text in TEXTS[:3]}


def test_answers_are_kept_by_what_gave_them(tmp_path: Path) -> None:
    path = tmp_path / "new" / "kept.sqlite"
    kept = AnswerCache(path, "a judge")
    odd = "half a pair \ud83d and \x00"
    for question, answer in (("one", 0.1 + 0.2), (odd, [["x", "ü"]]), ("none", None)):
        kept.put(question, answer)
    kept.put("one", 0.9)  # the first one stays
    again = AnswerCache(path, "a judge")
    assert again.get(["one", odd, "none", "two"]) == {"one": 0.1 + 0.2, odd: [["x", "ü"]], "none": None}
    assert AnswerCache(path, "another").get(["one"]) == {}
    assert again.counts() == {"a judge": 3}
    many = [f"question {number}" for number in range(1200)]
    for number, question in enumerate(many):
        kept.put(question, number)
    assert again.get(many) == {question: number for number, question in enumerate(many)}
    assert b"question 7" not in path.read_bytes() + path.with_name("kept.sqlite-wal").read_bytes()


def test_a_file_that_is_read_only_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "kept.sqlite"
    with pytest.raises(DataError, match="kept.sqlite: there are no kept answers: the file is missing"):
        AnswerCache(path, "a judge", read_only=True)
    kept = AnswerCache(path, "a judge")
    kept.put("one", 1)
    assert AnswerCache(path, "a judge", read_only=True).get(["one"]) == {"one": 1}
    other = AnswerCache(path, "unknown", read_only=True)
    assert other.get(["one"]) == {} and other.counts() == {"a judge": 1}
    with pytest.raises(DataError, match="an answer cannot be kept"):
        other.put("two", 2)


@pytest.mark.parametrize("content", [b"no database at all, but long enough to be looked at", b"{}\n" * 400])
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "kept.sqlite"
    path.write_bytes(content)
    for read_only in (False, True):
        with pytest.raises(DataError, match=r"kept.sqlite: expected a file of kept answers, or one that can be made"):
            AnswerCache(path, "a judge", read_only=read_only)
    assert path.read_bytes() == content
    for number, table in enumerate(("answers (x)", "users (name)")):
        with sqlite3.connect(tmp_path / f"other_{number}.sqlite") as other:
            other.execute(f"CREATE TABLE {table}")
        before = (tmp_path / f"other_{number}.sqlite").read_bytes()
        for read_only in (False, True):
            with pytest.raises(DataError, match="expected a file of kept answers"):
                AnswerCache(tmp_path / f"other_{number}.sqlite", "a judge", read_only=read_only)
        assert (tmp_path / f"other_{number}.sqlite").read_bytes() == before


def _put(path: Path, worker: int) -> None:
    kept = AnswerCache(path, "a judge")
    for number in range(100):
        kept.put(f"{number}", worker)
        kept.put(f"{worker}/{number}", number)


def test_several_processes_may_use_one_file(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    path = tmp_path / "kept.sqlite"
    workers = [context.Process(target=_put, args=(path, worker)) for worker in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert AnswerCache(path, "a judge").counts() == {"a judge": 400}
