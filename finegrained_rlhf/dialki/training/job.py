"""Training DIALKI, or a baseline, as a configuration: what `finegrained train-dialki` builds and runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.markers import InputFile, ModelName, at_least
from finegrained_rlhf.core.sources import Part
from finegrained_rlhf.dialki.data import DialogueData
from finegrained_rlhf.dialki.inputs.history_labels import HistoryLabels
from finegrained_rlhf.dialki.model.config import DialkiConfig, LossConfig
from finegrained_rlhf.training.supervised.job import BatchConfig, BatchSize, Epochs, ModelRun, PassSize


@dataclass(frozen=True)
class DialkiBatchConfig(BatchConfig):
    """How many dialogues and passages are taken at a time.

    Attributes:
        passages: passages of a dialogue in training: one with gold and sampled others (8 on Doc2Dial, 10 on Wizard of
            Wikipedia, 5 on INSCIT).
        group_size: most inputs (passages) that go through the encoder together; they are sorted by length before.
    """

    batch_size: BatchSize = 4
    eval_batch_size: PassSize = 16
    passages: Annotated[int, at_least(1)] = 8
    group_size: PassSize = 64


@dataclass(frozen=True, kw_only=True)
class TrainDialki(ModelRun):
    """Train DIALKI, or a baseline, on dialogues whose agent turns name the knowledge that they rest on.

    The exported model answers the validation dialogues in the end, and γ is tuned on them. Fields of every training
    run: see `TrainingRun`; without `total_steps`, `epochs` counts.

    Attributes:
        data: dialogues to train on (a directory for `dstc11`).
        model: directory or Hub name of the encoder to start from.
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
        dropout: rate everywhere in the model; None keeps the encoder's own and `dialki.dropout`.
    """

    assembly: ClassVar[str] = "finegrained_rlhf.dialki.training.systems.assemble_dialki"

    data: InputFile
    validation_data: InputFile | None = None
    model: ModelName
    format: str = "jsonl"
    documents: InputFile | None = None
    part: Part = "all"
    validation_part: Part = "all"
    validation_examples: Annotated[int | None, at_least(1)] = None
    dialki: DialkiConfig = field(default_factory=DialkiConfig)
    losses: LossConfig = field(default_factory=LossConfig)
    history_labels: HistoryLabels = "all"
    batches: DialkiBatchConfig = field(default_factory=DialkiBatchConfig)
    epochs: Epochs = 20

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
