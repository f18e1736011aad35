"""What moves a component's weight or unit: schedules, dual variables and moments by step, gates by response.

A schedule is a function of the step. A constraint asks that a component's mean reach a threshold; its dual variable
raises the weight until it does, and is part of the checkpoint. A gate lets a component count only in responses in
which another one passes a threshold.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from finegrained_rlhf.core.checks import is_number
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import above
from finegrained_rlhf.core.records import SegmentScores
from finegrained_rlhf.rewards.aggregation import ResponseValue, response_value
from finegrained_rlhf.rl.stats import Reduce, RunningMoments

if TYPE_CHECKING:
    import torch

Interpolation = Literal["linear", "constant"]


@dataclass(frozen=True)
class WeightSchedule(Settings):
    """The weight with which a component is trained, by training step; nothing is scheduled without `steps`.

    Between steps s_i and s_{i+1} the weight is w_i + (w_{i+1} − w_i) · (s − s_i) / (s_{i+1} − s_i) (`linear`) or w_i
    (`constant`); before the first step it is the first weight, from the last step on the last.

    Attributes:
        steps: training steps, counted from 1, increasing; 0 may stand for the start.
        weights: the weight at each.
        interpolation: what holds between two steps: `linear` or `constant`.
    """

    steps: Sequence[int] = ()
    weights: Sequence[float] = ()
    interpolation: Interpolation = "linear"

    def __post_init__(self) -> None:
        steps, weights = list(self.steps), list(self.weights)
        if len(steps) != len(weights):
            raise ConfigError(f"reward.schedule: one weight a step is needed, got {len(steps)} steps and {weights}")
        valid = all(isinstance(step, int) and not isinstance(step, bool) and step >= 0 for step in steps)
        if not valid or steps != sorted(set(steps)):
            raise ConfigError(f"reward.schedule: steps must be whole numbers from 0 that increase, got {steps}")
        for weight in weights:
            if not is_number(weight):
                raise ConfigError(f"reward.schedule: weights must be finite numbers, got {weight!r}")

    @property
    def active(self) -> bool:
        """True when there is anything to follow."""
        return bool(self.steps)

    def weight_at(self, step: int) -> float:
        """The weight of a training step, from 1; only where the schedule is active."""
        after = bisect_right(self.steps, step)
        if after == 0:
            return float(self.weights[0])
        begin, weight = self.steps[after - 1], float(self.weights[after - 1])
        if after == len(self.steps) or self.interpolation == "constant":
            return weight
        return weight + (self.weights[after] - weight) * (step - begin) / (self.steps[after] - begin)


@dataclass(frozen=True)
class RewardGate(Settings):
    """When a component counts; always without `by`.

    Hierarchical rewards as in ALaRM (Lai et al., 2024, arXiv 2403.06754, section 3.1), where a component is added only
    if the holistic reward of the response passes a threshold. A closed gate takes the component out of the response
    as a whole, all of its segments: w · 1[v ≥ at_least], with v the other component's value of the response. What the
    scorer of the other gave decides (raw, an empty response as `empty` says), whatever its weight or its own gate.

    Attributes:
        by: the component that decides.
        at_least: the smallest value of a response at which the gate is open, in the unit of `by`; needed with it.
        of: `mean` or `sum` of the values of the response's segments; 0 where it has none.
    """

    by: str | None = None
    at_least: float | None = None
    of: ResponseValue = "mean"

    def __post_init__(self) -> None:
        if (self.by is None) != (self.at_least is None):
            raise ConfigError(f"reward.gates: by and at_least belong together, got {self.by!r} and {self.at_least!r}")

    @property
    def active(self) -> bool:
        """True when another component decides."""
        return self.by is not None

    def opens(self, scores: Mapping[str, SegmentScores]) -> tuple[bool, ...] | None:
        """Whether the gate is open in each of R responses, by the raw scores of all components; None without `by`."""
        if self.by is None or self.at_least is None:
            return None
        return tuple(response_value(row, self.of) >= self.at_least for row in scores[self.by].values)


_RECENT = 20
"""Steps whose mean says at the end of a run whether a constraint is met."""


@dataclass(frozen=True)
class RewardConstraint(Settings):
    """What a component must reach on average; nothing without `at_least`.

    After every training step λ ← min(max_multiplier, max(0, λ + rate · (at_least − m))), with m the mean over all
    responses of the step; the component is trained with its weight + λ, λ being 0 at first. This is dual ascent on
    the Lagrangian of constrained RL (Ray et al., 2019, section 5; for RLHF Moskovitz et al., 2023, arXiv 2310.04373,
    section 4), without their rescaling of the other rewards, since advantages are whitened.

    Validations give the mean that they reached as `constraint/NAME/value`, and how many constraints lie above it as
    `constraints_missed`. The best checkpoint of a run is one that misses fewest, among these the one with the highest
    score, which knows no λ: the rules of Deb (2000), but that of two that miss as many the better score wins, not the
    smaller distance, since components have different units.

    Attributes:
        at_least: threshold in the component's unit, for what the scorer gives (raw).
        of: what a response counts with: `mean` or `sum` of the values of its segments; 0 where it has none.
        rate: step size of the dual variable, above 0; weight per unit of the component and step.
        max_multiplier: largest λ; null lets it grow as long as the constraint is missed.
    """

    at_least: float | None = None
    of: ResponseValue = "mean"
    rate: Annotated[float, above(0)] = 0.05
    max_multiplier: Annotated[float | None, above(0)] = None

    @property
    def active(self) -> bool:
        """True when there is a threshold."""
        return self.at_least is not None


class DualVariable:
    """λ of one constraint, and how far the constraint was met.

    Args:
        constraint: an active one.
        reduce: sums a small tensor over all processes.

    Attributes:
        multiplier: λ of the next step.
        steps: training steps so far.
        missed: those whose mean lay below the threshold.
        recent: means of the last steps, at most 20.
    """

    def __init__(self, constraint: RewardConstraint, reduce: Reduce) -> None:
        self._constraint, self._reduce = constraint, reduce
        self.multiplier, self.steps, self.missed = 0.0, 0, 0
        self.recent: list[float] = []

    def update(self, rows: Sequence[tuple[float, ...]]) -> float:
        """Take in the raw values of this process's responses; every process must call this.

        Returns:
            The step's mean over all processes, by which λ was moved; 0 where no process has a response, which moves
            nothing.
        """
        import torch

        total, count = self._reduce(torch.tensor(self.sums(rows), dtype=torch.float64)).tolist()
        if not count:
            return 0.0
        mean, config = total / count, self._constraint
        assert config.at_least is not None
        moved = max(0.0, self.multiplier + config.rate * (config.at_least - mean))
        self.multiplier = moved if config.max_multiplier is None else min(config.max_multiplier, moved)
        self.steps += 1
        self.missed += self.missed_by(mean)
        self.recent = [*self.recent, mean][-_RECENT:]
        return mean

    def sums(self, rows: Sequence[tuple[float, ...]]) -> tuple[float, float]:
        """What the responses with these raw values add up to, in the unit of the threshold, and how many they are."""
        values = [response_value(row, self._constraint.of) for row in rows]
        return math.fsum(values), float(len(values))

    def missed_by(self, mean: float) -> bool:
        """Whether a mean lies below the threshold."""
        assert self._constraint.at_least is not None
        return mean < self._constraint.at_least

    def shortfall(self) -> str | None:
        """By how much the last steps missed the threshold, and for how long, in words; None where they did not."""
        at_least = self._constraint.at_least
        if not self.recent or at_least is None:
            return None
        mean = math.fsum(self.recent) / len(self.recent)
        if mean >= at_least:
            return None
        return (
            f"at_least={at_least:g} was not reached: {mean:.4g} in the last {len(self.recent)} steps, "
            f"{at_least - mean:.3g} too little; missed in {self.missed} of {self.steps} steps, λ is now "
            f"{self.multiplier:.3g}"
        )

    def state(self) -> dict[str, Any]:
        """What a checkpoint must keep."""
        return {"multiplier": self.multiplier, "steps": self.steps, "missed": self.missed, "recent": self.recent}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` gave."""
        self.multiplier, self.recent = float(state["multiplier"]), [float(mean) for mean in state["recent"]]
        self.steps, self.missed = int(state["steps"]), int(state["missed"])


class Normaliser:
    """Running moments of one component, and those that validations use.

    Args:
        reduce: sums a small tensor over all processes.

    Attributes:
        running: of all values that training has seen.
        fixed: of the values of the first validation; None before it.
    """

    def __init__(self, reduce: Reduce) -> None:
        self._reduce = reduce
        self.running = RunningMoments()
        self.fixed: RunningMoments | None = None

    def train(
        self, rows: Sequence[tuple[float, ...]], drawn: Sequence[tuple[float, ...]]
    ) -> Sequence[tuple[float, ...]]:
        """(v − μ) / σ of `rows` by the running moments, which take in all that was `drawn` first."""
        self.running.update(_flat(drawn), self._reduce)
        return _standardised(rows, self.running)

    def again(self, rows: Sequence[tuple[float, ...]]) -> Sequence[tuple[float, ...]]:
        """(v − μ) / σ by the running moments as they are."""
        return _standardised(rows, self.running)

    def fix(self, rows: Sequence[tuple[float, ...]]) -> None:
        """Keep the moments of these values for all validations; later calls change nothing.

        Every process must call this with its own share of the values.
        """
        if self.fixed is None:
            moments = RunningMoments()
            moments.update(_flat(rows), self._reduce)
            self.fixed = moments

    def validate(self, rows: Sequence[tuple[float, ...]]) -> Sequence[tuple[float, ...]]:
        """(v − μ) / σ by the fixed moments; by the running ones, left as they are, where none were fixed."""
        return _standardised(rows, self.fixed or self.running)

    @property
    def seen(self) -> bool:
        """True when there are moments to standardise by."""
        return bool(self.running.count or self.fixed)

    def state(self) -> dict[str, Any]:
        """What a checkpoint must keep."""
        return {"running": _listed(self.running), "validation": self.fixed and _listed(self.fixed)}

    def load_state(self, state: Any) -> None:
        """Take back what `state` gave; also the three numbers that older checkpoints hold."""
        if isinstance(state, list):
            state = {"running": state, "validation": None}
        self.running = RunningMoments(*state["running"])
        self.fixed = RunningMoments(*state["validation"]) if state["validation"] else None


def _flat(rows: Sequence[tuple[float, ...]]) -> torch.Tensor:
    import torch

    return torch.tensor([value for row in rows for value in row])


def _standardised(rows: Sequence[tuple[float, ...]], moments: RunningMoments) -> Sequence[tuple[float, ...]]:
    return [tuple((value - moments.mean) / moments.std for value in row) for row in rows]


def _listed(moments: RunningMoments) -> list[float]:
    return [moments.count, moments.mean, moments.m2]
