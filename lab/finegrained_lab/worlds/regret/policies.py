"""The policies of PAHF's statements: asks on ambiguous rounds, is corrected after an error, both, or neither.

Knows what a round shows. Does not know what is right, probabilities or formulas. Every array is over R runs at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from finegrained_lab.worlds.regret.rounds import DrawnRounds, Flags, Integers, RegretRound


class RegretPolicy(Protocol):
    """What acts in rounds."""

    def begin(self, belief: Integers) -> None:
        """Take what is believed of each situation at the beginning, [R, S]."""
        ...

    def act(self, seen: RegretRound) -> Integers:
        """Actions, [R]."""
        ...

    def correct(self, seen: RegretRound, wrong: Flags, right: Integers) -> None:
        """Take the user's corrections.

        Args:
            seen: the round.
            wrong: where the action was wrong, on rounds that are not ambiguous, [R].
            right: the right action, [R]; to be read where `wrong` alone.
        """
        ...


@dataclass
class MemoryPolicy:
    """Acts by its memory of each situation; on ambiguous rounds by what the answers leave, the smallest number of it.

    Attributes:
        questions: k, on ambiguous rounds.
        patience: errors in a situation after which its memory takes a correction; None never takes one.
        always: ask on every round, ambiguous or not, and trust the answers alone.
    """

    questions: int = 0
    patience: int | None = None
    always: bool = False

    def begin(self, belief: Integers) -> None:
        """Take what is believed of each situation at the beginning, [R, S]."""
        self._belief = belief.copy()
        self._errors = np.zeros_like(belief)
        self._runs = np.arange(len(belief))

    def act(self, seen: RegretRound) -> Integers:
        """Actions, [R]."""
        asks = seen.ambiguous | self.always
        guess = np.zeros(len(self._runs), np.int64)
        for place in range(self.questions):
            guess += seen.ask(place, asks) * seen.arity**place
        return np.where(asks, guess, self._belief[self._runs, seen.slot])

    def correct(self, seen: RegretRound, wrong: Flags, right: Integers) -> None:
        """Replace what is believed of the situation, after `patience` errors in it."""
        if self.patience is None:
            return
        self._errors[self._runs, seen.slot] += wrong
        takes = wrong & (self._errors[self._runs, seen.slot] >= self.patience)
        self._belief[self._runs[takes], seen.slot[takes]] = right[takes]
        self._errors[self._runs[takes], seen.slot[takes]] = 0


@dataclass
class CalendarPolicy:
    """Of two actions, takes the other one after half of the rounds: the best without feedback (proposition 1).

    Attributes:
        rounds: T.
    """

    rounds: int

    def begin(self, belief: Integers) -> None:
        """Take what is believed of each situation at the beginning, [R, S]."""
        self._belief = belief.copy()

    def act(self, seen: RegretRound) -> Integers:
        """Actions, [R]."""
        kept = self._belief[np.arange(len(self._belief)), seen.slot]
        return kept if seen.number + 1 <= self.rounds / 2 else 1 - kept

    def correct(self, seen: RegretRound, wrong: Flags, right: Integers) -> None:
        """Nothing is learnt."""


def play_rounds(policy: RegretPolicy, drawn: DrawnRounds) -> tuple[Integers, Integers]:
    """Errors and questions of each run, [R] and [R].

    The oracle, who knows what is right, makes no error: the errors are the dynamic regret.
    """
    errors = np.zeros(len(drawn.right), np.int64)
    asked = np.zeros_like(errors)
    policy.begin(drawn.begin)
    for t in range(drawn.right.shape[1]):
        right = drawn.right[:, t]
        seen = RegretRound(t, drawn.ambiguous[:, t], drawn.slot[:, t], drawn.arity, right, asked)
        wrong = policy.act(seen) != right
        errors += wrong
        policy.correct(seen, wrong & ~seen.ambiguous, right)
    return errors, asked
