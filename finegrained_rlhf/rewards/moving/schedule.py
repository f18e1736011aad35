"""A weight as a function of the training step. Nothing of it needs a checkpoint."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from finegrained_rlhf.core.checks import is_number
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings

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
