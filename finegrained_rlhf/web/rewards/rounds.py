"""Requests of many trainers, scored together in rounds: what has come while one round was scored makes the next.

The scorers batch what a round gives them by length. A request that a scorer refuses fails alone.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

import torch

from finegrained_rlhf.core.errors import FineGrainedError
from finegrained_rlhf.core.records import Prompt, SegmentScores
from finegrained_rlhf.rewards.checks import check_scores, naming
from finegrained_rlhf.rewards.protocol import PromptCheckingScorer, Scorer, StartableScorer
from finegrained_rlhf.runtime.processes import Processes

logger = logging.getLogger(__name__)


class QueueFull(Exception):
    """More responses wait than may.

    Attributes:
        retry_after_s: whole seconds after which there should be room.
    """

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(f"the queue is full; try again in {retry_after_s} s")
        self.retry_after_s = retry_after_s


@dataclass
class _Request:
    component: str
    prompts: Sequence[Prompt]
    responses: Sequence[str]
    scores: Future[SegmentScores] = field(default_factory=Future)


class Rounds:
    """Scores requests in a thread of its own.

    Args:
        scorers: by name of their component, set up.
        processes: give the precision.
        rows_at_once: responses of a round; a larger request is a round alone.
        rows_waiting: responses that may wait; a request beyond that is refused, unless none waits.

    Attributes:
        scored: responses by component.
        done: rounds.
        busy_s: seconds spent in them.
        refused: requests for which there was no room.
    """

    def __init__(
        self, scorers: Mapping[str, Scorer], processes: Processes, rows_at_once: int, rows_waiting: int
    ) -> None:
        self._scorers, self._processes = scorers, processes
        self._at_once, self._most = rows_at_once, rows_waiting
        self._queue: deque[_Request] = deque()
        self._changed, self._waiting, self._closed = threading.Condition(), 0, False
        self.scored, self.done, self.busy_s, self.refused = Counter[str](), 0, 0.0, 0
        self._thread = threading.Thread(target=self._run, name="rounds", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Responses that wait or are being scored."""
        return self._waiting

    def submit(self, component: str, prompts: Sequence[Prompt], responses: Sequence[str]) -> Future[SegmentScores]:
        """Let a component score R responses; without any, let it check the prompts.

        Args:
            component: its name.
            prompts: R prompts, or those to be checked.
            responses: R texts.

        Returns:
            The scores, once they are there; or what the scorer raised.

        Raises:
            QueueFull: too much waits.
        """
        request = _Request(component, prompts, responses)
        with self._changed:
            if self._waiting and self._waiting + len(responses) > self._most:
                self.refused += 1
                raise QueueFull(self._seconds_until_room())
            self._waiting += len(responses)
            self._queue.append(request)
            self._changed.notify()
        return request.scores

    def _seconds_until_room(self) -> int:
        scored = self.scored.total()
        return min(max(math.ceil(self._waiting * self.busy_s / scored), 1), 60) if scored else 1

    def close(self) -> None:
        """End when what waits is scored."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _next(self) -> list[_Request]:
        """What the next round scores, in the order in which it came; empty at the end."""
        requests, rows = list[_Request](), 0
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closed)
            while self._queue and (not requests or rows + len(self._queue[0].responses) <= self._at_once):
                requests.append(self._queue.popleft())
                rows += len(requests[-1].responses)
        return requests

    def _run(self) -> None:
        while requests := self._next():
            began = time.perf_counter()
            wanted = [one for one in requests if one.scores.set_running_or_notify_cancel()]
            self._score(wanted)
            with self._changed:
                self.busy_s += time.perf_counter() - began
                self.done += 1
                self._waiting -= sum(len(one.responses) for one in requests)
                for one in wanted:
                    self.scored[one.component] += len(one.responses)

    @torch.no_grad()
    def _score(self, requests: Sequence[_Request]) -> None:
        """Answer every request, all components' work started before any is waited for."""
        started = list[tuple[list[_Request], Callable[[], SegmentScores]]]()
        with self._processes.autocast():
            for batch in self._batches(requests):
                try:
                    started.append((batch, self._start(batch)))
                except Exception as error:
                    self._fail(batch, error)
            for batch, collect in started:
                try:
                    _answer(batch, collect())
                except Exception as error:
                    self._fail(batch, error)

    def _batches(self, requests: Sequence[_Request]) -> list[list[_Request]]:
        """Requests that are scored as one: of one component, unless it counts what each gave, or checks prompts."""
        batches: dict[object, list[_Request]] = {}
        for number, request in enumerate(requests):
            alone = not request.responses or bool(getattr(self._scorers[request.component], "counted", None))
            batches.setdefault(number if alone else request.component, []).append(request)
        return list(batches.values())

    def _start(self, batch: Sequence[_Request]) -> Callable[[], SegmentScores]:
        """Start the scoring of a batch; the function that is returned waits for it."""
        name, scorer = batch[0].component, self._scorers[batch[0].component]
        prompts = [prompt for one in batch for prompt in one.prompts]
        responses = [response for one in batch for response in one.responses]
        if not responses:
            if isinstance(scorer, PromptCheckingScorer):
                scorer.check_prompts(prompts)
            return lambda: SegmentScores((), ())
        collect: Callable[[], SegmentScores] = partial(scorer.score, prompts, responses)
        with naming(name, scorer, prompts, responses):
            if isinstance(scorer, StartableScorer):
                collect = scorer.start(prompts, responses)

        def checked() -> SegmentScores:
            with naming(name, scorer, prompts, responses):
                return check_scores(name, collect(), prompts, responses)

        return checked

    def _fail(self, batch: Sequence[_Request], error: Exception) -> None:
        """Score the requests of a batch one by one, since one of them may be at fault; of a single one, say why."""
        if len(batch) > 1:
            for one in batch:
                self._score([one])
            return
        if not isinstance(error, FineGrainedError):
            logger.error("component %s broke", batch[0].component, exc_info=error)
        batch[0].scores.set_exception(error)


def _answer(batch: Sequence[_Request], scores: SegmentScores) -> None:
    start = 0
    for one in batch:
        end = start + len(one.responses)
        one.scores.set_result(scores if len(batch) == 1 else _part(scores, start, end))
        start = end


def _part(scores: SegmentScores, start: int, end: int) -> SegmentScores:
    """The scores of responses `start` to `end`."""
    unscored = frozenset(row - start for row in scores.unscored if start <= row < end)
    return SegmentScores(scores.spans[start:end], scores.values[start:end], scores.whole_response, unscored)
