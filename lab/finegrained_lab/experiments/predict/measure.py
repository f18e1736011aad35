"""The rows of a world: what is measured of each reward of its grid, and what is true of the samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from finegrained_lab.experiments.predict.grid import RewardModelGrid
from finegrained_lab.experiments.predict.rewards import row_of
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.core.markers import OutputFile


@dataclass(frozen=True)
class MeasureRewards(Settings):
    """Write a row a reward of a grid.

    Attributes:
        grid: with all its components scored.
        weights: of the components.
        output: JSON.
    """

    grid: RewardModelGrid
    weights: Mapping[str, float]
    output: OutputFile

    def run(self) -> None:
        """Measure and write.

        Raises:
            DataError: a component is not scored.
        """
        truth = self.grid.truth()
        rows: list[dict[str, Any]] = []
        for noise in self.grid.noises:
            for fault in self.grid.faults:
                rewards = {size: self.grid.reward(self.weights, size, noise, fault) for size in self.grid.models}
                for size, reward in rewards.items():
                    others = [other for name, other in rewards.items() if name != size]
                    row = row_of(reward, truth, others, self.grid.surface)
                    what: dict[str, Any] = {"fault": fault, "component": self.grid.spoils[fault]}
                    what |= {"in_battery": self.grid.in_battery.get(fault)}
                    rows.append({**what, "size": size, "noise": noise, "seed": self.grid.seed, **row})
        write_json(self.output, rows)
        print(f"{len(rows)} rewards -> {self.output}")
