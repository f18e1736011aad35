"""Training a classifier of texts as a configuration: what `finegrained train-classifier` builds and runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar

from finegrained_rlhf.core.markers import InputFile, ModelName, above, at_least, below, harmless
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.training_run import TrainingRun
from finegrained_rlhf.training.classifier.config import ClassifierBatchConfig, ClassifierSelection

if TYPE_CHECKING:
    from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
    from finegrained_rlhf.runtime.loop.types import LoopResult
    from finegrained_rlhf.runtime.processes import Processes
    from finegrained_rlhf.training.classifier.trainer import ClassifierTrainer


@dataclass(frozen=True, kw_only=True)
class TrainClassifier(TrainingRun["ClassifierTrainer"]):
    """Train a classifier of texts, for `rewards.ClassifierScorer` and whoever reads the Hugging Face layout.

    Fields of every training run: see `TrainingRun`; without `total_steps`, `epochs` counts.

    Attributes:
        data: labelled or scored texts to train on (`feedback.labelled_texts`).
        model: directory or Hub name of an encoder or a decoder-only model to start from; a head on it is drawn anew.
        optimizer: rates and schedule.
        validation_data: texts to select by; None trains without, and the last model is exported.
        classes: in order; with scores two, of which a score is the second's probability. None takes the
            labels that occur, sorted.
        epochs: passes over the data; used where `total_steps` is None.
        batches: batch sizes.
        max_length: longest text in tokens; longer ones lose their end. None takes the model's limit.
        dropout: rate everywhere in the model; None keeps the model's own.
        selected_by: `loss` or `accuracy` on the validation texts.
        shuffle_labels: deal the labels out anew among the training texts: a control that must not learn.
    """

    export: ClassVar[str] = "model"

    data: InputFile
    model: ModelName
    optimizer: OptimizerConfig
    validation_data: InputFile | None = None
    classes: Sequence[str] | None = None
    epochs: Annotated[float, above(0), harmless] = 3
    batches: ClassifierBatchConfig = field(default_factory=ClassifierBatchConfig)
    max_length: Annotated[int | None, at_least(4)] = None
    dropout: Annotated[float | None, at_least(0), below(1)] = None
    selected_by: ClassifierSelection = "loss"
    shuffle_labels: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()

    def steps(self, examples: int) -> int:
        """Training steps on so many texts."""
        if self.total_steps is not None:
            return self.total_steps
        return max(1, math.ceil(self.epochs * examples / self.batches.batch_size))

    def train(self, built: ClassifierTrainer, processes: Processes, run: RunDirectory) -> LoopResult:
        """Run the loop; the best model ends up in `output_dir/model`, what it reaches in `metrics.json`."""
        from finegrained_rlhf.training.classifier.train import train_classifier

        return train_classifier(self, built, processes, run)

    def assemble(self, processes: Processes, run: RunDirectory) -> ClassifierTrainer:
        """Read texts and model.

        Raises:
            DataError: a file is missing or damaged.
            ConfigError: labels that do not belong to the data.
            ModelError: no model that can classify, a tokenizer that cannot pad, or one that is not the model's.
        """
        from finegrained_rlhf.training.classifier.train import assemble_classifier

        return assemble_classifier(self, processes, run)
