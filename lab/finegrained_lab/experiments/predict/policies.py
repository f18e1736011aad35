"""PPO on some rewards of the grid, each in units of its spread among samples of the first policy."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from finegrained_lab.experiments.predict.grid import RewardModelGrid, run_command
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import OutputDirectory


@dataclass(frozen=True)
class TrainInUnits(Settings):
    """Train a policy by PPO on each of some rewards; the sum of a response has one standard deviation under the SFT.

    Attributes:
        grid: whose components the rewards are made of.
        weights: of the components, before the unit is chosen.
        rewards: `[size, noise, fault]` of each.
        train: arguments of `train-ppo` that all runs share.
        steps: of each run.
        validate_every: steps.
        output_dir: of the runs, a directory a reward.
    """

    grid: RewardModelGrid
    weights: Mapping[str, float]
    rewards: Sequence[Sequence[object]]
    train: Sequence[str]
    steps: int
    validate_every: int
    output_dir: OutputDirectory

    def run(self) -> None:
        """Train whatever is not there, one after the other.

        Raises:
            DataError: a component is not scored yet.
        """
        for size, noise, fault in self.rewards:
            reward = self.grid.reward(self.weights, size, noise, fault)  # type: ignore[arg-type]
            directory = Path(self.output_dir) / reward.name
            if (directory / "metrics.json").is_file():
                continue
            arguments = [*self.train, f"total_steps={self.steps}", f"validate_every={self.validate_every}"]
            arguments += [f"output_dir={directory}", f"seed={self.grid.seed}"]
            for kind, component in self.grid.components_of(size, noise, fault).items():  # type: ignore[arg-type]
                arguments.append(self.grid.policy_argument(component))
                arguments.append(f"reward.weights.{kind}={self.weights[kind] / reward.spread:.6g}")
            run_command("train-ppo", arguments)
            shutil.rmtree(directory / "checkpoints", ignore_errors=True)
