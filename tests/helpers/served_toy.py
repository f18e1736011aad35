"""A server of rewards in a thread of the test, and scorers whose values say which text of which prompt they are of."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import uvicorn

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.records import Prompt, SegmentScores
from finegrained_rlhf.rewards import BaseScorer, Scorer, ServedScorer
from finegrained_rlhf.runtime import ProcessConfig, RemoteConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.web.rewards.application import create_app, described
from finegrained_rlhf.web.rewards.job import listening
from finegrained_rlhf.web.rewards.rounds import Rounds


def value_of(prompt: Prompt, response: str, word: str) -> float:
    """A number that is another one for every prompt, response and word."""
    text = f"{prompt.metadata['question']}\0{response}\0{word}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") / 2**32


class Words(BaseScorer):
    """Every word is a segment. A response with `bad` in it is refused, and one with `broken` breaks the scorer.

    Attributes:
        calls: the number of responses of each call.
        gate: closed, scoring waits.
    """

    error_free_from, value_range, reads_on, look_ahead = 0.5, (0.0, 1.0), False, 0

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.gate = threading.Event()
        self.gate.set()

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        self.calls.append(len(responses))
        assert self.gate.wait(30)
        if any("bad" in response for response in responses):
            raise DataError("a bad response", record=prompts[0].id)
        if any("broken" in response for response in responses):
            raise MemoryError("no room")
        spans = [tuple(match.span() for match in re.finditer(r"\w+", text)) for text in responses]
        rows = zip(prompts, responses, spans, strict=True)
        return SegmentScores(spans, [tuple(value_of(p, text, text[a:b]) for a, b in of) for p, text, of in rows])


class Doubts(Words):
    """The same; a response with `who` in it has no score, and is counted."""

    counted = ("read", "unread")

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        given = super().score(prompts, responses)
        unread = frozenset(row for row, text in enumerate(responses) if "who" in text)
        spans = [() if row in unread else one for row, one in enumerate(given.spans)]
        values = [() if row in unread else one for row, one in enumerate(given.values)]
        counts = {"read": float(len(responses) - len(unread)), "unread": float(len(unread))}
        return SegmentScores(spans, values, unscored=unread, counts=counts)


@dataclass(frozen=True)
class Server:
    """A server that answers at `url`, and what scores in it."""

    url: str
    rounds: Rounds


@contextmanager
def serving(
    scorers: Mapping[str, Scorer],
    *,
    version: str = "v",
    port: int = 0,
    rows_at_once: int = 256,
    rows_waiting: int = 4096,
    **settings: Any,
) -> Iterator[Server]:
    """A server of these scorers; it ends as after SIGTERM."""
    for scorer in scorers.values():
        scorer.setup(torch.device("cpu"))
    components = {name: described(name, scorer, f"{version}-{name}") for name, scorer in scorers.items()}
    rounds = Rounds(scorers, Processes(ProcessConfig()), rows_at_once, rows_waiting)
    app = create_app(rounds, components, **settings)
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", access_log=False))
    with listening("127.0.0.1", port) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.005)
            yield Server(f"http://127.0.0.1:{listener.getsockname()[1]}", rounds)
        finally:
            server.should_exit = True
            thread.join()
            rounds.close()


def served(url: str, component: str, remote: Mapping[str, Any] | None = None, **settings: Any) -> ServedScorer:
    """A client that does not wait long."""
    quick = {"backoff_s": 0.01, "longest_wait_s": 0.2, "budget_s": 20.0, **(remote or {})}
    return ServedScorer(RemoteConfig(url, **quick), component, **settings)
