"""What a run may ask of language models: said before it asks anything, and again after its first rounds.

The protocols say how often at most each thing is asked for; what it costs is extrapolated from what was metered.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from finegrained_lab.protocols.answers import KeptModel
from finegrained_rlhf.core.generation.asking import TRIES

EARLY = 20
"""Rounds after which tokens and time are extrapolated."""


@dataclass(frozen=True)
class Asks:
    """What a language model is asked for in a run.

    Attributes:
        kind: in a word or two.
        most: how often at most, where every reply can be used.
        tries: calls for each where no reply can be used.
    """

    kind: str
    most: int
    tries: int = TRIES


def most_calls(asks: Sequence[Asks]) -> tuple[int, int]:
    """The most calls where every reply can be used, and where none can."""
    return sum(one.most for one in asks), sum(one.most * one.tries for one in asks)


class Forecast:
    """Prints a line when it is made, and one after the first `EARLY` rounds in which a language model was paid.

    Args:
        rounds: that will be played, in words.
        models: by whose they are: a language model, and what it is asked for.
    """

    def __init__(self, rounds: str, models: Mapping[str, tuple[KeptModel, Sequence[Asks]]]) -> None:
        self._models, self._paid_rounds, self._begin = models, 0, time.monotonic()
        print("; ".join([rounds, *(self._before(who, *model) for who, model in models.items())]))

    def _before(self, who: str, model: KeptModel, asks: Sequence[Asks]) -> str:
        most, worst = most_calls(asks)
        kinds: Counter[str] = Counter()
        for one in asks:
            kinds[one.kind] += one.most
        parts = ", ".join(f"{count:,} {kind}" for kind, count in kinds.items())
        kept = "" if model.kept is None else f"; {model.kept:,} answers are kept and not asked for again"
        return f"{who}'s language model: at most {most:,} calls ({parts}), {worst:,} if no reply can be used{kept}"

    def played(self) -> None:
        """A round is over."""
        paid = sum(model.paid.expense.calls for model, _ in self._models.values())
        if not paid:
            self._begin = time.monotonic()  # all was kept so far
        elif self._paid_rounds < EARLY:
            self._paid_rounds += 1
            if self._paid_rounds == EARLY:
                self._extrapolate(paid, time.monotonic() - self._begin)

    def _extrapolate(self, paid: int, seconds: float) -> None:
        parts, left = [], 0
        for who, (model, asks) in self._models.items():
            so_far, asked = model.paid.expense, model.asked.expense.calls
            most, worst = most_calls(asks)
            settled = asked - model.asked.unreadable
            calls = round((most - settled) * asked / settled) if settled else worst - asked
            calls = max(0, min(calls, worst - asked))
            left += calls
            if so_far.calls:
                tokens_in, tokens_out = (calls * n // so_far.calls for n in (so_far.tokens_in, so_far.tokens_out))
                parts.append(f"{who}'s up to {calls:,} calls, {tokens_in:,} tokens in and {tokens_out:,} out")
        minutes = left * seconds / paid / 60
        print(f"to go, as the {EARLY} rounds so far were: {'; '.join(parts)}; up to {minutes:,.1f} minutes")
