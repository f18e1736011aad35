"""Training the towers of dense passage retrieval as a configuration: what `finegrained train-dpr` builds and runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import InputFile, ModelName, at_least
from finegrained_rlhf.training.supervised.job import BatchConfig, Epochs, ModelRun


@dataclass(frozen=True)
class DprSampling(Settings):
    """What a query brings into a training step.

    Attributes:
        positives: `first` takes a record's first positive in every step; `all` draws one of them in each.
        hard_negatives: drawn of a record's hard negatives, or all where it has fewer.
        other_negatives: drawn of its other negatives, likewise.
    """

    positives: Literal["first", "all"] = "first"
    hard_negatives: Annotated[int, at_least(0)] = 1
    other_negatives: Annotated[int, at_least(0)] = 1


@dataclass(frozen=True, kw_only=True)
class TrainDPR(ModelRun):
    """Train the two towers of dense passage retrieval, for `retriever=dense` with `encoder.query` and `.passage`.

    The best towers, by the rank of each validation query's first positive among the passages of all, are two
    Hugging Face directories, `output_dir/model/query` and `output_dir/model/passage`; what they reach is in
    `metrics.json`. Fields of every training run: see `TrainingRun`; without `total_steps`, `epochs` counts.

    Attributes:
        data: queries with positives and negatives to train on (`training.dpr.records`).
        query_model: directory or Hub name of the encoder that the query tower starts from.
        passage_model: the same of the passage tower.
        validation_data: queries to select by; None trains without, and the last towers are exported.
        batches: batch sizes; each query is compared with the passages of all. Where a process has more queries (or
            trained passages) than a micro-batch, they go through their tower twice.
        sampling: which passages a query brings into a step.
        freeze_passages: train the query tower alone, so that an index stays valid.
        max_query_tokens: longest query; of a longer one the first, the newest and the most recent turns stay.
        max_passage_tokens: longest passage; longer ones lose their end.
        validation_negatives: of each kind, that a validation record brings into the passages, the first ones.
        best_from_epoch: validations before this epoch are left out.
        selected_by: `mean_rank`, as in the paper, which a few queries far down decide; or the mean reciprocal rank,
            `mrr`, which those that are near the top do.
    """

    assembly: ClassVar[str] = "finegrained_rlhf.training.dpr.trainer.assemble_dpr"

    data: InputFile
    validation_data: InputFile | None = None
    query_model: ModelName
    passage_model: ModelName
    epochs: Epochs = 40
    batches: BatchConfig = BatchConfig(48, 48, 64)
    sampling: DprSampling = field(default_factory=DprSampling)
    freeze_passages: bool = True
    max_query_tokens: Annotated[int, at_least(8)] = 384
    max_passage_tokens: Annotated[int, at_least(8)] = 384
    validation_negatives: Annotated[int, at_least(0)] = 30
    best_from_epoch: float = 0
    selected_by: Literal["mean_rank", "mrr"] = "mean_rank"

    def __post_init__(self) -> None:
        if self.best_from_epoch < 0 or (self.total_steps is None and self.best_from_epoch > self.epochs):
            raise ConfigError(
                f"best_from_epoch: expected 0 to epochs, which is {self.epochs}, got {self.best_from_epoch}"
            )
        super().__post_init__()
