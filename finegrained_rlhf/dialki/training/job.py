"""Training DIALKI, or a baseline, as a configuration: what `finegrained train-dialki` builds and runs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.markers import InputFile, ModelName, above, at_least, below, harmless
from finegrained_rlhf.core.sources import Part
from finegrained_rlhf.dialki.data import DialogueData
from finegrained_rlhf.dialki.inputs.history_labels import HistoryLabels
from finegrained_rlhf.dialki.model.config import DialkiConfig, LossConfig
from finegrained_rlhf.dialki.training.config import DialkiBatchConfig
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.loop.types import LoopConfig, LoopResult
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.training_run import TrainingRun

if TYPE_CHECKING:
    from finegrained_rlhf.dialki.training.trainer import KnowledgeTrainer
    from finegrained_rlhf.runtime.processes import Processes


@dataclass(frozen=True, kw_only=True)
class TrainDialki(TrainingRun["tuple[KnowledgeTrainer, dict[str, Any]]"]):
    """Train DIALKI, or a baseline, on dialogues whose agent turns name the knowledge that they rest on.

    Fields of every training run: see `TrainingRun`; without `total_steps`, `epochs` counts.

    Attributes:
        data: dialogues to train on (a directory for `dstc11`).
        model: directory or Hub name of the encoder to start from.
        optimizer: rates and schedule.
        format: of `data` and `validation_data`: `jsonl`, or one that a package reads, as the laboratory
            `doc2dial`, `wow` and `dstc11`.
        documents: `doc2dial` only: the document file.
        part: `dstc11` only: the part to train on.
        validation_data: dialogues to select by; None trains without, and the last model is exported.
        validation_part: `dstc11` only: the part to select by.
        validation_examples: use at most so many of them; None uses all.
        dialki: what the model is: a `DialkiConfig` (with `units` sentences Multi-Sentence) or a `BertQaConfig`.
        losses: their weights, and the noise.
        history_labels: whose knowledge labels the history loss uses: those of `all` turns, `agent`, `half` (of the
            agent's) or `none`; as controls `current` (the last user turn's alone), `earlier` (all but that one) or
            `random` (every label replaced by a random span).
        batches: sizes, and passages a dialogue.
        epochs: passes over the examples; used where `total_steps` is None.
        dropout: rate everywhere in the model; None keeps the encoder's own and `dialki.dropout`.
    """

    export: ClassVar[str] = "model"

    data: InputFile
    model: ModelName
    optimizer: OptimizerConfig
    format: str = "jsonl"
    documents: InputFile | None = None
    part: Part = "all"
    validation_data: InputFile | None = None
    validation_part: Part = "all"
    validation_examples: Annotated[int | None, at_least(1)] = None
    dialki: DialkiConfig = field(default_factory=DialkiConfig)
    losses: LossConfig = field(default_factory=LossConfig)
    history_labels: HistoryLabels = "all"
    batches: DialkiBatchConfig = field(default_factory=DialkiBatchConfig)
    epochs: Annotated[float, above(0), harmless] = 20
    dropout: Annotated[float | None, at_least(0), below(1)] = None

    def __post_init__(self) -> None:
        if self.dialki.parity:
            raise ConfigError("dialki.parity: a model is trained with masked logits; parity compares trained weights")
        if self.dialki.next_loss_only and (self.losses.history or self.losses.adversarial):
            raise ConfigError(
                f"{self.dialki.system} has one loss: give losses.history=0 and losses.adversarial=0, or baseline=bertqa"
            )
        if self.dialki.next_loss_only and self.losses.gold != "one":
            raise ConfigError(f"losses.gold: {self.dialki.system} learns one answer at a time, expected one")
        if self.losses.gold == "each" and self.dialki.units != "whole":
            raise ConfigError("losses.gold: each asks of passages without spans, expected dialki.units=whole")
        self.source()
        super().__post_init__()

    def source(self, validation: bool = False) -> DialogueData:
        """Where the examples come from; Doc2Dial's validation documents are seen where training has them."""
        path = self.validation_data if validation and self.validation_data is not None else self.data
        seen_in = self.data if validation and "seen_in" in DialogueData.options(self.format) else None
        return DialogueData(
            path,
            self.format,
            documents=self.documents,
            seen_in=seen_in,
            part=self.validation_part if validation else self.part,
        )

    def steps(self, examples: int) -> int:
        """Training steps on so many examples."""
        if self.total_steps is not None:
            return self.total_steps
        return max(1, math.ceil(self.epochs * examples / self.batches.batch_size))

    def loop_config(self, examples: int) -> LoopConfig:
        """The settings of the training loop on so many examples."""
        epoch = max(1, math.ceil(examples / self.batches.batch_size))
        return self.loop_settings(self.steps(examples), epoch=epoch, validates=self.validation_data is not None)

    def train(
        self, built: tuple[KnowledgeTrainer, dict[str, Any]], processes: Processes, run: RunDirectory
    ) -> LoopResult:
        """Run the loop; then answer the validation dialogues by the exported model and tune γ on them."""
        from finegrained_rlhf.dialki.training.train import write_results

        trainer, report = built
        result = self.fit(trainer, self.loop_config(len(trainer.train)), processes, run)
        write_results(self, trainer, run, result, report, processes)
        return result

    def assemble(self, processes: Processes, run: RunDirectory) -> tuple[KnowledgeTrainer, dict[str, Any]]:
        """Load model and data; also gives what was read and what did not fit, ready for JSON.

        Raises:
            DataError: broken data, or nothing is left to train on.
            ModelError: `model` is no encoder.
        """
        from finegrained_rlhf.dialki.training.train import new_trainer

        return new_trainer(self, processes)
