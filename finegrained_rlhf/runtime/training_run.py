"""What every training job has: where it writes, how long it trains, what it resumes from; and the order of its start.

A start is: tracking is checked, the directory locked, what changed since the run began compared, random numbers seeded,
models loaded, the configuration and its provenance written, and the loop run. Knows no model and no data.
"""

from __future__ import annotations

import dataclasses
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, TypeVar

from finegrained_rlhf.core.errors import ConfigError, FineGrainedError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import InputFile, OutputDirectory, Seed, at_least, harmless
from finegrained_rlhf.core.seeding import seed_everything
from finegrained_rlhf.runtime.directory.lock import locked_directory
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.directory.run_records import precision_of_run, recorded, refuse_changes
from finegrained_rlhf.runtime.job import as_config
from finegrained_rlhf.runtime.loop.types import LoopConfig, LoopResult, Trainable
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.runtime.sinks import MetricSinks, TrackingConfig

if TYPE_CHECKING:
    from finegrained_rlhf.runtime.processes import Processes

logger = logging.getLogger(__name__)

Built = TypeVar("Built")
_CONFIGURATION: ContextVar[Mapping[str, Any] | None] = ContextVar("configuration", default=None)


@dataclass(frozen=True, kw_only=True)
class TrainingRun(Settings, ABC, Generic[Built]):
    """A training job; a subclass adds its own fields, `assemble` and `train`.

    Attributes:
        output_dir: run directory.
        seed: of everything random.
        total_steps: training steps; None derives them from what else the job says.
        validate_every: training steps between validations; None validates once an epoch.
        checkpoint_every: training steps between checkpoints; None writes one an epoch.
        keep_checkpoints: how many of the latest stay, beside that of step 0 and the last.
        patience: end after so many validations in a row without a better one; None never does.
        resume: `auto`, `never`, or a checkpoint or run directory.
        resume_changed: `refuse` to go on with other data, models or settings than the run began with, or `allow` it.
        processes: precision and CPU threads.
        tracking: where metrics go beside the run directory.
    """

    every_process: ClassVar[bool] = True
    shards_weights: ClassVar[bool] = False
    export: ClassVar[str] = "policy"

    output_dir: OutputDirectory
    seed: Seed = 0
    total_steps: Annotated[int | None, at_least(1), harmless] = None
    validate_every: Annotated[int | None, at_least(1), harmless] = None
    checkpoint_every: Annotated[int | None, at_least(1), harmless] = None
    keep_checkpoints: Annotated[int, at_least(1), harmless] = 2
    patience: Annotated[int | None, at_least(1), harmless] = None
    resume: Annotated[Literal["auto", "never"] | InputFile, harmless] = "auto"
    resume_changed: Annotated[Literal["refuse", "allow"], harmless] = "refuse"
    processes: ProcessConfig = dataclasses.field(default_factory=ProcessConfig)
    tracking: Annotated[TrackingConfig, harmless] = dataclasses.field(default_factory=TrackingConfig)

    def __post_init__(self) -> None:
        if self.processes.sharding == "full" and not self.shards_weights:
            raise ConfigError(
                "processes.sharding: full is for PPO, supervised fine-tuning, classifiers, GeDi and reward models; "
                "here expected none or gradients"
            )

    def loop_settings(self, total_steps: int, *, epoch: int, validates: bool) -> LoopConfig:
        """The settings of the training loop.

        Args:
            total_steps: training steps.
            epoch: training steps of one pass over the data, for what happens once an epoch.
            validates: whether there is anything to validate on.
        """
        every = epoch if self.validate_every is None else self.validate_every
        return LoopConfig(
            total_steps=total_steps,
            seed=self.seed,
            checkpoint_every=epoch if self.checkpoint_every is None else self.checkpoint_every,
            validate_every=every if validates else None,
            keep_checkpoints=self.keep_checkpoints,
            resume=self.resume,
            export=self.export,
            patience=self.patience,
        )

    def run(self) -> LoopResult:
        """Train, or continue training; `processes.precision=auto` goes on as the run began.

        Raises:
            ConfigError: the directory is in use or foreign, or data, models or settings changed since the run began.
            FineGrainedError: what loading and training raise.
        """
        from finegrained_rlhf.runtime.processes import Processes

        run, shared = RunDirectory(self.output_dir), self.processes
        if shared.precision == "auto" and self.resume != "never":
            shared = dataclasses.replace(shared, precision=precision_of_run(run) or "auto")
        processes = Processes(shared)
        config = self.configuration()
        with self._claimed(run, config, processes):
            built = self.build(processes, run)
            if processes.is_main:
                logger.info(processes.description)
            with recorded(run, config, self.resume, processes):
                return self.train(built, processes, run)

    def configuration(self) -> Mapping[str, Any]:
        """What the run is recorded by, in plain containers: what it was composed of, else its fields."""
        return given_configuration() or as_config(self)

    def build(self, processes: Processes, run: RunDirectory | None = None) -> Built:
        """Load models and data. Every process draws the same new layers and adapters, from the seed.

        Args:
            processes: that work together.
            run: where the trainer keeps samples; by default the job's directory.
        """
        seed_everything(self.seed, "models")
        return self.assemble(processes, RunDirectory(self.output_dir) if run is None else run)

    @abstractmethod
    def assemble(self, processes: Processes, run: RunDirectory) -> Built:
        """Load models and data, right after the random numbers were seeded."""

    @abstractmethod
    def train(self, built: Built, processes: Processes, run: RunDirectory) -> LoopResult:
        """Run the loop on what was built, and write the results."""

    def fit(self, trainer: Trainable, loop: LoopConfig, processes: Processes, run: RunDirectory) -> LoopResult:
        """Run the training loop with the job's sinks."""
        from finegrained_rlhf.runtime.loop.run import run_loop

        return run_loop(trainer, run, loop, processes, MetricSinks(self.tracking))

    def outcome(self, result: LoopResult, run: RunDirectory, score: str = "") -> str:
        """Where the exported model is, in one line; with its score where that has a name."""
        shown = f" ({score} {result.best_score:.3f})" if score and result.best_score is not None else ""
        return f"the {self.export} of step {result.best_step}{shown} is in {run.final(self.export)}"

    @contextmanager
    def _claimed(self, run: RunDirectory, config: Mapping[str, Any], processes: Processes) -> Iterator[None]:
        """Hold the directory, in the main process for all; refuse, in all processes alike, what cannot go on."""
        with ExitStack() as stack:
            problem: FineGrainedError | None = None
            if processes.is_main:
                try:
                    self.tracking.check()
                    stack.enter_context(locked_directory(run.path))
                    run.refuse_foreign()
                    refuse_changes(run, config, self.resume, self.resume_changed)
                except FineGrainedError as error:
                    problem = error
            problem = processes.broadcast_object(problem)
            if problem is not None:
                raise problem
            yield


def given_configuration() -> Mapping[str, Any]:
    """What the job was composed of, in plain containers; empty where it was made by code."""
    return _CONFIGURATION.get() or {}


@contextmanager
def configured(config: Mapping[str, Any]) -> Iterator[None]:
    """Within the block, training runs are described by this configuration (plain containers), not by their fields."""
    token = _CONFIGURATION.set(config)
    try:
        yield
    finally:
        _CONFIGURATION.reset(token)
