"""Training on given examples as a configuration: batch sizes, epochs, dropout, and the order of a run."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from finegrained_rlhf.core.fields import Settings, named_class
from finegrained_rlhf.core.markers import DataName, InputFile, above, at_least, below, harmless
from finegrained_rlhf.models.config import PolicyConfig
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.training_run import TrainingRun

if TYPE_CHECKING:
    from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
    from finegrained_rlhf.runtime.loop.types import LoopConfig, LoopResult
    from finegrained_rlhf.runtime.processes import Processes
    from finegrained_rlhf.training.supervised.trainer import SupervisedTrainer

Epochs = Annotated[float, above(0), harmless]
BatchSize = Annotated[int, at_least(1)]
PassSize = Annotated[int, at_least(1), harmless]
"""How many examples go through a model together, which changes no result."""


@dataclass(frozen=True)
class BatchConfig(Settings):
    """How many examples are taken at a time: texts, queries, dialogues, records with labels, or pairs.

    Attributes:
        batch_size: examples a training step, over all processes.
        micro_batch_size: examples in one forward and backward pass of a process, which does not change a step; None
            takes the whole share of the process.
        eval_batch_size: examples in one forward pass of a validation.
    """

    batch_size: BatchSize
    micro_batch_size: PassSize | None = None
    eval_batch_size: PassSize = 32


@dataclass(frozen=True, kw_only=True)
class SupervisedRun(TrainingRun["SupervisedTrainer[Any]"]):
    """Training on given examples. A subclass says how long it trains, and what assembles its trainer.

    Attributes:
        data: examples to train on.
        validation_data: examples to select by; None trains without, and the last model is exported.
    """

    assembly: ClassVar[str]

    data: DataName | InputFile
    validation_data: DataName | InputFile | None = None

    @property
    @abstractmethod
    def sizes(self) -> BatchConfig:
        """How many examples are taken at a time."""

    @abstractmethod
    def loop(self, built: SupervisedTrainer[Any]) -> LoopConfig:
        """The settings of the training loop."""

    def assemble(self, processes: Processes, run: RunDirectory) -> SupervisedTrainer[Any]:
        """Load model and data by the function that `assembly` names."""
        with processes.in_turn():
            trainer: SupervisedTrainer[Any] = named_class(self.assembly)(self, processes)
        return trainer

    def train(self, built: SupervisedTrainer[Any], processes: Processes, run: RunDirectory) -> LoopResult:
        """Run the loop; then the trainer measures, or names, the exported model."""
        result = self.fit(built, self.loop(built), processes, run)
        built.finish(result, run)
        return result


@dataclass(frozen=True, kw_only=True)
class EpochsRun(SupervisedRun):
    """Training in epochs of batches that have one number of examples.

    Attributes:
        optimizer: rates and schedule.
        epochs: passes over the data; used where `total_steps` is None.
        packing: pad less, which changes a step by rounding alone (dropout draws apart). Policies of T5's family and
            decoder-only ones lay the examples of a micro-batch one behind the other in rows; of what cannot,
            micro-batches are cut by length so that padding costs least.
        dropout: rate everywhere in what is trained; None keeps the model's own.
    """

    optimizer: OptimizerConfig
    epochs: Epochs = 1
    packing: Annotated[bool, harmless] = False
    dropout: Annotated[float | None, at_least(0), below(1)] = None

    def steps(self, examples: int) -> int:
        """Training steps on so many examples."""
        if self.total_steps is not None:
            return self.total_steps
        return max(1, math.ceil(self.epochs * examples / self.sizes.batch_size))

    def loop_config(self, examples: int) -> LoopConfig:
        """The settings of the training loop on so many examples."""
        epoch = max(1, math.ceil(examples / self.sizes.batch_size))
        return self.loop_settings(self.steps(examples), epoch=epoch, validates=self.validation_data is not None)

    def loop(self, built: SupervisedTrainer[Any]) -> LoopConfig:
        """The settings of the training loop on the trainer's examples."""
        return self.loop_config(len(built.data))


@dataclass(frozen=True, kw_only=True)
class ModelRun(EpochsRun):
    """Training of a model that is no policy on given examples.

    Attributes:
        batches: batch sizes.
    """

    export: ClassVar[str] = "model"

    batches: BatchConfig

    @property
    def sizes(self) -> BatchConfig:
        """How many examples are taken at a time."""
        return self.batches


@dataclass(frozen=True, kw_only=True)
class PolicyRun(EpochsRun):
    """Training of a policy on given examples.

    Attributes:
        policy: model to start from.
        batch_size: examples an optimizer step, over all processes.
        micro_batch_size: examples in one forward and backward pass of a process.
        validation_batch_size: the same in a validation.
    """

    policy: PolicyConfig
    batch_size: BatchSize = 4
    micro_batch_size: PassSize = 4
    validation_batch_size: PassSize = 16

    def __post_init__(self) -> None:
        self.policy.check_frozen(self.processes.precision, reference=False)
        super().__post_init__()

    @property
    def sizes(self) -> BatchConfig:
        """How many examples are taken at a time."""
        return BatchConfig(self.batch_size, self.micro_batch_size, self.validation_batch_size)
