"""Training the towers of dense passage retrieval as a configuration: what `finegrained train-dpr` builds and runs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, get_args

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.hub.names import ModelPath
from finegrained_rlhf.models.dropout import set_dropout
from finegrained_rlhf.models.encoders.towers import TwoTowers
from finegrained_rlhf.models.loading import check_vocabulary
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.loop.run import LoopResult
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.runtime.training_run import TrainingRun
from finegrained_rlhf.training.dpr.batches import DprSampling, DprSet
from finegrained_rlhf.training.dpr.records import read_dpr_records
from finegrained_rlhf.training.dpr.trainer import DprBatchConfig, DprSelection, DprTrainer, DprValidation


@dataclass(frozen=True, kw_only=True)
class TrainDPR(TrainingRun[DprTrainer]):
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

    data: str
    query_model: ModelPath
    passage_model: ModelPath
    optimizer: OptimizerConfig
    validation_data: str | None = None
    epochs: float = 40
    batches: DprBatchConfig = field(default_factory=DprBatchConfig)
    sampling: DprSampling = field(default_factory=DprSampling)
    freeze_passages: bool = True
    max_query_tokens: int = 384
    max_passage_tokens: int = 384
    dropout: float | None = None
    validation_negatives: int = 30
    best_from_epoch: float = 0
    selected_by: DprSelection = "mean_rank"

    def __post_init__(self) -> None:
        if self.epochs <= 0:
            raise ConfigError(f"epochs: expected more than 0, got {self.epochs}")
        for name in ("max_query_tokens", "max_passage_tokens"):
            if getattr(self, name) < 8:
                raise ConfigError(f"{name}: expected at least 8, got {getattr(self, name)}")
        if self.selected_by not in get_args(DprSelection):
            raise ConfigError(f"selected_by: expected mean_rank or mrr, got {self.selected_by!r}")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout: expected null or 0 <= dropout < 1, got {self.dropout}")
        if self.validation_negatives < 0:
            raise ConfigError(f"validation_negatives: expected 0 or more, got {self.validation_negatives}")
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
        examples, held_out = len(built.train.examples), len(built.validation.data.examples)
        epoch = max(1, math.ceil(examples / self.batches.batch_size))
        loop = self.loop_settings(self.steps(examples), epoch=epoch, validates=bool(held_out))
        result = self.fit(built, loop, processes, run)
        built.model = DprTrainer.copy_of(built.model, run.final(self.export)).to(processes.device)
        dev = built.measure()
        if processes.is_main:
            run.write_results(
                {
                    "best_step": result.best_step,
                    "steps": result.step,
                    "train_examples": examples,
                    "train_passages": len(built.train.passages),
                    "dev_examples": held_out,
                    "dev": dev,
                }
            )
            shown = ", ".join(f"{name} {value:.3f}" for name, value in dev.items() if name != "passages")
            print(f"towers: best at step {result.best_step}, dev {shown or 'not measured'}")
        processes.barrier()
        return result

    def assemble(self, processes: Processes, run: RunDirectory) -> DprTrainer:
        """Read queries, passages and towers.

        Raises:
            DataError: a file is missing or damaged, or there are no two passages to tell apart.
            ConfigError: `best_from_epoch` is after the last step.
            ModelError: a tower is missing, no encoder, or its tokenizer is not its own; or vectors of two widths.
        """
        records = read_dpr_records(self.data)
        held_out = [] if self.validation_data is None else read_dpr_records(self.validation_data)
        towers = TwoTowers.open(self.query_model, self.passage_model, self.max_query_tokens, self.max_passage_tokens)
        train, validation = DprSet.of(records, towers), DprSet.of(held_out, towers)
        if len(train.passages) < 2:
            raise DataError("holds one passage alone, expected two or more to tell apart", file=self.data)
        check_vocabulary(towers.query, [one.ids for one in (*train.examples, *validation.examples)])
        check_vocabulary(towers.passage, [*train.passages, *validation.passages])
        towers.passage.requires_grad_(not self.freeze_passages)
        if self.dropout is not None:
            set_dropout(towers, self.dropout)
        steps = self.steps(len(records))
        from_step = math.ceil(self.best_from_epoch * len(records) / self.batches.batch_size)
        if from_step > steps:
            raise ConfigError(f"best_from_epoch: expected at most {steps} steps, got {from_step}")
        return DprTrainer(
            towers,
            train,
            DprValidation(validation, self.validation_negatives, from_step, self.selected_by),
            self.sampling,
            self.batches,
            self.optimizer,
            steps,
            processes,
            seed=self.seed,
        )
