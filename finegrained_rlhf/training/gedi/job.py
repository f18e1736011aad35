"""Training a class-conditional language model as a configuration: what `finegrained train-gedi` builds and runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from finegrained_rlhf.core.markers import InputFile, at_least, at_most
from finegrained_rlhf.training.supervised.job import BatchSize, PolicyRun


@dataclass(frozen=True, kw_only=True)
class TrainGeDi(PolicyRun):
    """Train a class-conditional language model on labelled texts, for `rollout.GeDi`.

    The best model by its loss on the validation texts ends up in `output_dir/policy`. Fields of every training run: see
    `TrainingRun`; without `total_steps`, `epochs` counts.

    Attributes:
        data: labelled texts (`feedback.labelled_texts`); their scores are not read.
        policy: decoder-only model to start from, with the vocabulary of the policy that it shall steer.
        codes: by class the text that stands before its texts; None takes the classes' own names, sorted.
        validation_data: texts to select by; None trains without, and the last model is exported.
        generative: λ, the share of the generative loss; the rest is the discriminative one's.
        micro_batch_size: texts in one forward and backward pass of a process, each once a class.
        max_tokens: longest text, end of sequence included; longer ones lose their end.
    """

    assembly: ClassVar[str] = "finegrained_rlhf.training.gedi.trainer.assemble_gedi"
    shards_weights: ClassVar[bool] = True

    data: InputFile
    validation_data: InputFile | None = None
    codes: Mapping[str, str] | None = None
    generative: Annotated[float, at_least(0.0), at_most(1.0)] = 0.8
    batch_size: BatchSize = 16
    max_tokens: Annotated[int, at_least(2)] = 192
