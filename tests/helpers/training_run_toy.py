"""The smallest training job; run as a script it trains in its own process: `training_run_toy.py DIRECTORY SECONDS`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from runtime_toy import Toy

from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.loop.types import LoopResult
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.runtime.training_run import TrainingRun


class StoppingToy(Toy):
    """Ends at a step, or fails, or gives a score that is no number; takes seconds a step."""

    stop_at: int | None = None
    nan = False

    def train_step(self, step: int) -> dict[str, float]:
        metrics = super().train_step(step)
        if step == self.stop_at:
            self.stop_reason = "enough is enough"
        return metrics

    def validate(self, step: int) -> dict[str, float]:
        return {"score": float("nan")} if self.nan else super().validate(step)


@dataclass(frozen=True, kw_only=True)
class ToyRun(TrainingRun[StoppingToy]):
    """Trains a toy on nothing; `data` is a file that it could have read.

    Attributes:
        data: a file.
        lr: a setting.
        stop_at: step at which it ends early.
        nan: validations give NaN.
        seconds: of a step.
    """

    data: str | None = None
    lr: float = 0.1
    stop_at: int | None = None
    nan: bool = False
    seconds: float = 0.0

    def assemble(self, processes: Processes, run: RunDirectory) -> StoppingToy:
        drawn = float(torch.rand(()))
        toy = StoppingToy(processes, 12, {0: 0.0, 4: 1.0})
        toy.stop_at, toy.nan, toy.seconds = self.stop_at, self.nan, self.seconds
        toy.drawn = drawn  # type: ignore[attr-defined]
        return toy

    def train(self, built: StoppingToy, processes: Processes, run: RunDirectory) -> LoopResult:
        return self.fit(built, self.loop_settings(self.total_steps or 12, epoch=4, validates=True), processes, run)


if __name__ == "__main__":
    torch.set_num_threads(1)
    ToyRun(output_dir=sys.argv[1], seconds=float(sys.argv[2]), checkpoint_every=1).run()
    print(Path(sys.argv[1]).name)
