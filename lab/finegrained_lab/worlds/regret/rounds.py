"""Rounds with a right action: some ambiguous, others of situations whose preferences change; questions and corrections.

Knows what is right in each round of each run. Does not know policies: they see a round, ask digits, and are corrected.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from finegrained_lab.worlds.regret.formulas import geometric_residual, power_law_residual, uniform_residual
from finegrained_rlhf.core.errors import ConfigError

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Prior(Protocol):
    """What is believed of an ambiguous round's right action, a number from 0."""

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Integers:
        """Right actions of a shape."""
        ...

    def residual(self, arity: int, questions: int) -> float:
        """Error of the best guess after k questions of m answers."""
        ...


@dataclass(frozen=True)
class Geometric:
    """P(h) = (1 − r) rʰ.

    Attributes:
        ratio: r, between 0 and 1.
    """

    ratio: float = 0.5

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Integers:
        """Right actions of a shape."""
        return rng.geometric(1 - self.ratio, shape).astype(np.int64) - 1

    def residual(self, arity: int, questions: int) -> float:
        """r^(mᵏ)."""
        return geometric_residual(self.ratio, arity, questions)


@dataclass(frozen=True)
class Uniform:
    """n hypotheses, equally likely.

    Attributes:
        size: n.
    """

    size: int = 16

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Integers:
        """Right actions of a shape."""
        return rng.integers(0, self.size, shape)

    def residual(self, arity: int, questions: int) -> float:
        """1 − min(mᵏ, n) / n."""
        return uniform_residual(self.size, arity, questions)


@dataclass(frozen=True)
class PowerLaw:
    """P(h ≥ mᵏ) = q m⁻ᵏ, evenly from mᵏ to m^(k+1) − 1: each question leaves 1/m of the wrong mass.

    Attributes:
        arity: m, of the questions that are asked.
        mass: q, above 0 and at most m / (m + 1), so that the smallest number is the most probable.
    """

    arity: int = 2
    mass: float = 0.5

    def __post_init__(self) -> None:
        if self.arity < 2 or not 0 < self.mass <= self.arity / (self.arity + 1):
            raise ConfigError(f"expected m of 2 or more and q up to m / (m + 1), got {self.arity} and {self.mass}")

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Integers:
        """Right actions of a shape: a block of numbers, then any of it; what is beyond 2⁶² counts as its last block."""
        most = int(math.log(2**62, self.arity)) - 1
        block = np.minimum(rng.geometric(1 - 1 / self.arity, shape) - 1, most)
        first = self.arity ** block.astype(np.int64)
        return np.where(rng.random(shape) < self.mass, rng.integers(first, first * self.arity), 0)

    def residual(self, arity: int, questions: int) -> float:
        """The mass beyond mᵏ − 1, q m⁻ᵏ.

        Raises:
            ValueError: the questions have another number of answers than the prior is made for.
        """
        if arity != self.arity:
            raise ValueError(f"expected questions of {self.arity} answers, got {arity}")
        return power_law_residual(self.mass, arity, questions)


@dataclass(frozen=True)
class RegretWorld:
    """T rounds. A round is ambiguous with probability γ; else it is of one of S situations.

    An ambiguous round has a right action of its own, drawn from `prior`: nothing that was said before helps. A
    situation has a preferred action, one of n, which every switch changes to another one at random.

    Attributes:
        rounds: T.
        switches: K.
        ambiguous: γ.
        slots: S.
        options: n.
        arity: m, answers that a question can have.
        prior: of ambiguous rounds.
        when: `even`: segments of equal length; `once`: one switch, uniform over rounds 1 to T (proposition 1).
        known: whether the agent begins with the right preferences; else with action 0, while they are uniform.
    """

    rounds: int
    switches: int = 0
    ambiguous: float = 0.0
    slots: int = 1
    options: int = 2
    arity: int = 2
    prior: Prior = Geometric()
    when: Literal["even", "once"] = "even"
    known: bool = True

    @property
    def lengths(self) -> list[int]:
        """Rounds of each of the K + 1 segments where switches are even."""
        return [int(count) for count in np.bincount(self._even(), minlength=self.switches + 1)]

    def _even(self) -> Integers:
        """The segment of each round, [T]."""
        return np.arange(self.rounds, dtype=np.int64) * (self.switches + 1) // self.rounds

    def draw(self, seed: Sequence[int], runs: int) -> DrawnRounds:
        """R runs of it.

        Args:
            seed: of the random numbers.
            runs: R.
        """
        rng = np.random.default_rng(seed)
        shape = (runs, self.rounds)
        segment = np.broadcast_to(self._even(), shape)
        if self.when == "once":
            first = rng.integers(0, self.rounds, (runs, 1))
            segment = (np.arange(self.rounds)[None] >= first).astype(np.int64)
        steps = rng.integers(1, self.options, (runs, self.switches + 1, self.slots))
        steps[:, 0] = rng.integers(0, self.options, (runs, self.slots))
        wanted = np.cumsum(steps, axis=1) % self.options
        ambiguous = rng.random(shape) < self.ambiguous
        slot = rng.integers(0, self.slots, shape)
        preferred = wanted[np.arange(runs)[:, None], segment, slot]
        right = np.where(ambiguous, self.prior.draw(rng, shape), preferred)
        begin = wanted[:, 0] if self.known else np.zeros((runs, self.slots), np.int64)
        return DrawnRounds(ambiguous, slot, right, begin.copy(), self.arity)


@dataclass(frozen=True)
class DrawnRounds:
    """R runs of T rounds.

    Attributes:
        ambiguous: [R, T].
        slot: the situation, [R, T].
        right: the right action, [R, T].
        begin: what the agent believes of each situation before the first round, [R, S].
        arity: m.
    """

    ambiguous: Flags
    slot: Integers
    right: Integers
    begin: Integers
    arity: int


@dataclass
class RegretRound:
    """One round of all runs, as a policy sees it: it can ask, and does not see what is right.

    Attributes:
        number: t, from 0.
        ambiguous: [R].
        slot: [R].
        arity: m.
        asked: questions so far, [R].
    """

    number: int
    ambiguous: Flags
    slot: Integers
    arity: int
    _right: Integers
    asked: Integers

    def ask(self, place: int, where: Flags) -> Integers:
        """Digit `place` of the right action to base m, truthfully, [R]; 0 where it is not asked."""
        self.asked += where
        return np.where(where, self._right // self.arity**place % self.arity, 0)
