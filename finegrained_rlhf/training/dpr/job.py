"""Training the towers of dense passage retrieval as a configuration: what `finegrained train-dpr` builds and runs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.markers import InputFile, ModelName, above, at_least, below, harmless
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.training_run import TrainingRun
from finegrained_rlhf.training.dpr.config import DprBatchConfig, DprSampling, DprSelection

if TYPE_CHECKING:
    from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
    from finegrained_rlhf.runtime.loop.types import LoopResult
    from finegrained_rlhf.runtime.processes import Processes
    from finegrained_rlhf.training.dpr.trainer import DprTrainer


@dataclass(frozen=True, kw_only=True)
class TrainDPR(TrainingRun["DprTrainer"]):
    """Train the two towers of dense passage retrieval, for `retriever=dense` with `encoder.query` and `.passage`.

    The best towers, by the rank of each validation query's first positive among the passages of all, are two
    Hugging Face directories, `output_dir/model/query` and `output_dir/model/passage`.

    Fields of every training run: see `TrainingRun`; without `total_steps`, `epochs` counts.

    Attributes:
        data: queries with positives and negatives to train on (`training.dpr.records`).
        query_model: directory or Hub name of the encoder that the query tower starts from.
        passage_model: the same of the passage tower.
        optimizer: rates and schedule.
        validation_data: queries to select by; None trains without, and the last towers are exported.
        epochs: passes over the data; used where `total_steps` is None.
        batches: batch sizes.
        sampling: which passages a query brings into a step.
        freeze_passages: train the query tower alone, so that an index stays valid.
        max_query_tokens: longest query; of a longer one the first, the newest and the most recent turns stay.
        max_passage_tokens: longest passage; longer ones lose their end.
        dropout: rate everywhere in what is trained; None keeps the models' own.
        validation_negatives: of each kind, that a validation record brings into the passages, the first ones.
        best_from_epoch: validations before this epoch are left out.
        selected_by: `mean_rank`, as in the paper, or `mrr`.
    """

    export: ClassVar[str] = "model"

    data: InputFile
    query_model: ModelName
    passage_model: ModelName
    optimizer: OptimizerConfig
    validation_data: InputFile | None = None
    epochs: Annotated[float, above(0), harmless] = 40
    batches: DprBatchConfig = field(default_factory=DprBatchConfig)
    sampling: DprSampling = field(default_factory=DprSampling)
    freeze_passages: bool = True
    max_query_tokens: Annotated[int, at_least(8)] = 384
    max_passage_tokens: Annotated[int, at_least(8)] = 384
    dropout: Annotated[float | None, at_least(0), below(1)] = None
    validation_negatives: Annotated[int, at_least(0)] = 30
    best_from_epoch: float = 0
    selected_by: DprSelection = "mean_rank"

    def __post_init__(self) -> None:
        if self.best_from_epoch < 0 or (self.total_steps is None and self.best_from_epoch > self.epochs):
            raise ConfigError(
                f"best_from_epoch: expected 0 to epochs, which is {self.epochs}, got {self.best_from_epoch}"
            )
        super().__post_init__()

    def steps(self, examples: int) -> int:
        """Training steps on so many queries."""
        if self.total_steps is not None:
            return self.total_steps
        return max(1, math.ceil(self.epochs * examples / self.batches.batch_size))

    def train(self, built: DprTrainer, processes: Processes, run: RunDirectory) -> LoopResult:
        """Run the loop; the best towers end up in `output_dir/model`, what they reach in `metrics.json`."""
        from finegrained_rlhf.training.dpr.train import train_dpr

        return train_dpr(self, built, processes, run)

    def assemble(self, processes: Processes, run: RunDirectory) -> DprTrainer:
        """Read queries, passages and towers.

        Raises:
            DataError: a file is missing or damaged, or there are no two passages to tell apart.
            ConfigError: `best_from_epoch` is after the last step.
            ModelError: a tower is missing, no encoder, or its tokenizer is not its own; or vectors of two widths.
        """
        from finegrained_rlhf.training.dpr.train import assemble_dpr

        return assemble_dpr(self, processes, run)
