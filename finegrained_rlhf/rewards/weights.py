"""The weights that a training step is rewarded with: schedule plus dual variable. Gates act on responses, not here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from finegrained_rlhf.core.records import SegmentScores
from finegrained_rlhf.rewards.config import RewardConfig
from finegrained_rlhf.rewards.moving import DualVariable
from finegrained_rlhf.rl.stats import Reduce


class TrainedWeights:
    """w_k(step) = s_k(step) + λ_k: the schedule, or the configured weight without one, and the constraint's λ, or 0.

    Args:
        config: weights, schedules and constraints.
        reduce: sums a small tensor over all processes.
    """

    def __init__(self, config: RewardConfig, reduce: Reduce) -> None:
        self._config = config
        self._duals = {
            name: DualVariable(constraint, reduce)
            for name, constraint in config.constraints.items()
            if constraint.active
        }

    def at(self, step: int) -> dict[str, float]:
        """The weights of a training step, from 1, by name; penalties for form included."""
        weights = {name: float(weight) for name, weight in self._config.all_weights.items()}
        weights |= {name: s.weight_at(step) for name, s in self._config.schedule.items() if s.active}
        return {**weights, **{name: weights[name] + dual.multiplier for name, dual in self._duals.items()}}

    def update(self, scores: Mapping[str, SegmentScores]) -> dict[str, float]:
        """Move the dual variables by the raw scores of a step; every process must call this.

        Returns:
            Of every constraint `constraint/NAME/value`, the step's mean, and `constraint/NAME/multiplier`, the λ that
            the step was rewarded with.
        """
        metrics = {}
        for name, dual in self._duals.items():
            metrics[f"constraint/{name}/multiplier"] = dual.multiplier
            metrics[f"constraint/{name}/value"] = dual.update(scores[name].known())
        return metrics

    def sums(self, scores: Mapping[str, SegmentScores]) -> dict[str, tuple[float, float]]:
        """Of every constraint `constraint/NAME/value`: its sum over these responses, their number. Moves nothing."""
        return {f"constraint/{name}/value": dual.sums(scores[name].known()) for name, dual in self._duals.items()}

    def missed_constraints(self, means: Mapping[str, float]) -> dict[str, int]:
        """`constraints_missed`: how many constraints these means (`constraint/NAME/value`) lie below; {} without."""
        missed = [dual.missed_by(means[f"constraint/{name}/value"]) for name, dual in self._duals.items()]
        return {"constraints_missed": sum(missed)} if missed else {}

    def unmet(self) -> list[str]:
        """A sentence a constraint that the last steps missed."""
        shortfalls = {name: dual.shortfall() for name, dual in self._duals.items()}
        return [f"reward.constraints.{name}.{sentence}" for name, sentence in shortfalls.items() if sentence]

    def state(self) -> dict[str, Any]:
        """What a checkpoint must keep: the dual variables. Schedules are functions of the step."""
        return {name: dual.state() for name, dual in self._duals.items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` gave; constraints that it does not have begin anew."""
        for name, kept in state.items():
            if name in self._duals:
                self._duals[name].load_state(kept)
