"""Training a classifier of texts as a configuration: what `finegrained train-classifier` builds and runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from finegrained_rlhf.core.markers import InputFile, ModelName, at_least
from finegrained_rlhf.training.supervised.job import BatchConfig, Epochs, ModelRun


@dataclass(frozen=True, kw_only=True)
class TrainClassifier(ModelRun):
    """Train a classifier of texts, for `rewards.ClassifierScorer` and whoever reads the Hugging Face layout.

    The best model ends up in `output_dir/model`, what it reaches in `metrics.json`. Fields of every training run: see
    `TrainingRun`; without `total_steps`, `epochs` counts.

    Attributes:
        data: labelled or scored texts to train on (`feedback.labelled_texts`).
        model: directory or Hub name of an encoder or a decoder-only model to start from; a head on it is drawn anew.
        validation_data: texts to select by; None trains without, and the last model is exported.
        classes: in order; with scores two, of which a score is the second's probability. None takes the
            labels that occur, sorted.
        max_length: longest text in tokens; longer ones lose their end. None takes the model's limit.
        selected_by: `loss` or `accuracy` on the validation texts.
        shuffle_labels: deal the labels out anew among the training texts: a control that must not learn.
    """

    assembly: ClassVar[str] = "finegrained_rlhf.training.classifier.trainer.assemble_classifier"
    shards_weights: ClassVar[bool] = True

    data: InputFile
    validation_data: InputFile | None = None
    model: ModelName
    classes: Sequence[str] | None = None
    epochs: Epochs = 3
    batches: BatchConfig = BatchConfig(32, 32, 64)
    max_length: Annotated[int | None, at_least(4)] = None
    selected_by: Literal["loss", "accuracy"] = "loss"
    shuffle_labels: bool = False
