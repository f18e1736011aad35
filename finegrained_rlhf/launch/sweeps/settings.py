"""What the `sweep` node of conf/sweep.yaml builds: how points are run, measured and compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import DataName, at_least
from finegrained_rlhf.report.sweeps.results import SweepTable


@dataclass(frozen=True)
class PointEvaluation(Settings):
    """How points and baselines are measured.

    Attributes:
        data: prompt file with references; None takes the run's `validation_data`.
        oracle: option of `finegrained evaluate`'s group.
        rewards: measure what the point's reward models say.
        max_new_tokens: longest answer in tokens.
        batch_size: prompts decoded at once in a process, each with all its samples.
        limit: use at most so many prompts; None uses all.
    """

    data: DataName | None = None
    oracle: str = "none"
    rewards: bool = True
    max_new_tokens: int = 200
    batch_size: int = 16
    limit: int | None = None


@dataclass(frozen=True)
class SweepSettings(Settings):
    """How a sweep runs its points.

    Attributes:
        evaluation: of points and baselines.
        table: what the sweep says at its end.
        prepare: command lines, `NAME KEY=VALUE …`, that run once, before all points.
        parallel: points at once.
        processes: of `accelerate`, for each point.
        launch: further arguments of `accelerate launch`.
        gpus: numbers of the GPUs that the points share; None leaves the choice to accelerate.
        best_of: baselines: the best of so many samples of the initial policy; 1 is its greedy answer.
    """

    evaluation: PointEvaluation = field(default_factory=PointEvaluation)
    table: SweepTable = field(default_factory=SweepTable)
    prepare: Sequence[str] = ()
    parallel: Annotated[int, at_least(1)] = 1
    processes: Annotated[int, at_least(1)] = 1
    launch: Sequence[str] = ()
    gpus: Sequence[int] | None = None
    best_of: Sequence[int] = (1, 8)

    def __post_init__(self) -> None:
        if any(n < 1 for n in self.best_of):
            raise ConfigError(f"sweep.best_of: expected numbers of at least 1, got {list(self.best_of)}")
        if self.gpus is not None and len(self.gpus) < self.parallel * self.processes:
            needed = self.parallel * self.processes
            raise ConfigError(f"sweep.gpus: {self.parallel} points at once need {needed} GPUs, got {len(self.gpus)}")
