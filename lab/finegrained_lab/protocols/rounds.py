"""The rounds of a run: written as they come, and counted by what became of them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from finegrained_lab.protocols.forecast import Forecast
from finegrained_rlhf.core.generation.outcomes import Outcome, OutcomeCounts, ReplyError
from finegrained_rlhf.personalization.store.protocol import MemoryLimitError

FAILURES = 0.2
"""The share of the latest 500 rounds that may go unanswered, unless a run is told otherwise."""
RESULTS = ("summary.json", "curves.svg", "users.svg")
"""What a run writes at its end."""
_MODELS = "the language models of agent and user"


class PlayedRound(Protocol):
    """A record of a round, a dataclass.

    Attributes:
        odd: replies of the agent's language model that could not be used.
        unanswered: who gave no reply that can be used, and why: `agent unreadable`; empty where there was none.
    """

    @property
    def odd(self) -> int:
        """Replies that could not be used."""
        ...

    @property
    def unanswered(self) -> str:
        """Who gave no reply that can be used, and why."""
        ...


class Attempt:
    """A round that may go unanswered.

    Attributes:
        unanswered: as `PlayedRound.unanswered`.
        problem: the same in a sentence, which quotes no reply.
    """

    def __init__(self) -> None:
        self.unanswered = self.problem = ""

    @contextmanager
    def answered_by(self, who: str, within: bool = False) -> Iterator[None]:
        """What a language model is asked for; no reply that can be used ends it, and not the run.

        Nor does what a memory refuses, which counts as unreadable.

        Args:
            who: is asked: agent or user.
            within: whether another one's reply is wanted for which this one is needed: then that ends, too.
        """
        try:
            yield
        except (ReplyError, MemoryLimitError) as error:
            if not self.unanswered:
                outcome = error.outcome if isinstance(error, ReplyError) else Outcome.UNREADABLE
                self.unanswered, self.problem = f"{who} {outcome}", str(error)
            if within:
                raise


Played = TypeVar("Played", bound=PlayedRound)


class RoundLog(Generic[Played]):
    """The rounds of a run, each in the file before the next one begins.

    Args:
        path: FILE, which begins anew. Where a run ended here, its file and `RESULTS` are `NAME.before` until this one
            ends.
        failures: the share of rounds that may go unanswered; more, and more than chance allows, end the run.
        forecast: is told of each round.

    Raises:
        ConfigError: `failures` is no share.
    """

    def __init__(self, path: Path, failures: float, forecast: Forecast) -> None:
        self._counts, self._forecast = OutcomeCounts(failures), forecast
        path.parent.mkdir(parents=True, exist_ok=True)
        self._before = [path.with_name(name) for name in (path.name, *RESULTS)]
        if path.with_name(RESULTS[0]).exists():
            for file in self._before:
                if file.exists():
                    file.replace(file.with_name(f"{file.name}.before"))
        self._lines = open(path, "w", encoding="utf-8")  # noqa: SIM115 (closed by `__exit__`)
        self.rounds: list[Played] = []

    def __enter__(self) -> RoundLog[Played]:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        self._lines.close()
        if kind is None:
            for file in self._before:
                file.with_name(f"{file.name}.before").unlink(missing_ok=True)

    def keep(self, one: Played) -> None:
        """Keep and write a round for which no language model was asked."""
        self.rounds.append(one)
        line = json.dumps(asdict(one), ensure_ascii=False, allow_nan=False)  # type: ignore[call-overload]
        self._lines.write(f"{line}\n")
        self._lines.flush()

    def add(self, one: Played, problem: str = "") -> None:
        """Keep, write and count a round.

        Args:
            one: the round.
            problem: why it is unanswered.

        Raises:
            FailureBudgetError: too many are.
        """
        self.keep(one)
        self._counts.add([one.unanswered or Outcome.READ])
        self._counts.check(_MODELS, problem)
        self._forecast.played()

    def failures_by(self, scene: Callable[[Played], str]) -> dict[str, dict[str, int]]:
        """How many rounds of a scene were `unanswered`, and how many replies `odd`; scenes with neither are left out.

        Args:
            scene: of a round, whoever plays it.
        """
        found: dict[str, dict[str, int]] = defaultdict(lambda: {"unanswered": 0, "odd": 0})
        for one in self.rounds:
            if one.unanswered or one.odd:
                found[scene(one)]["unanswered"] += bool(one.unanswered)
                found[scene(one)]["odd"] += one.odd
        return dict(found)
