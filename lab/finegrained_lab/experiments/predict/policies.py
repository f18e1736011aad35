"""PPO on some rewards of the grid, each in units of its spread among samples of the first policy."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from finegrained_lab.experiments.predict.faults import Fault
from finegrained_lab.experiments.predict.grid import RewardModelGrid, components_of, run_command
from finegrained_lab.experiments.predict.rewards import Reward
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.core.markers import OutputDirectory


def reward_name(size: str, noise: float, fault: str) -> str:
    """The name of a reward of the grid."""
    return f"{fault}_{size}_{noise:g}"


def read_reward(grid: RewardModelGrid, weights: Mapping[str, float], size: str, noise: float, fault: Fault) -> Reward:
    """A reward of the grid, from what its components said.

    Raises:
        DataError: a component is not scored yet.
    """
    scored = {}
    for kind, component in components_of(size, noise, fault).items():
        path = Path(grid.output_dir) / "scores" / f"{component.name}.json"
        if not path.is_file():
            raise DataError("missing: run the step `grid` first", file=path)
        scored[kind] = read_json(path)
    return Reward(reward_name(size, noise, fault), weights, scored, grid.shown)


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
            reward = read_reward(self.grid, self.weights, size, noise, fault)  # type: ignore[arg-type]
            directory = Path(self.output_dir) / reward.name
            if (directory / "metrics.json").is_file():
                continue
            arguments = [*self.train, f"total_steps={self.steps}", f"validate_every={self.validate_every}"]
            arguments += [f"output_dir={directory}", f"seed={self.grid.seed}"]
            for kind, component in components_of(size, noise, fault).items():  # type: ignore[arg-type]
                arguments.append(f"reward.components.{kind}.path={self.grid.directory(component)}")
                arguments.append(f"reward.weights.{kind}={self.weights[kind] / reward.spread:.6g}")
            run_command("train-ppo", arguments)
            shutil.rmtree(directory / "checkpoints", ignore_errors=True)
