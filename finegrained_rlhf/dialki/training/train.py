"""Training DIALKI, or a baseline, as a configuration: what `scripts/train_dialki.py` builds and runs."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import atomic_directory
from finegrained_rlhf.core.hub.names import ModelPath
from finegrained_rlhf.dialki.finding.coverage import Coverage
from finegrained_rlhf.dialki.finding.finder import Found
from finegrained_rlhf.dialki.finding.scores import length_edges, summaries
from finegrained_rlhf.dialki.inputs.history_labels import HistoryLabels, check_history_labels, keep_history_labels
from finegrained_rlhf.dialki.inputs.report import InputReport
from finegrained_rlhf.dialki.model.model import DialkiConfig, load_model, new_model, read_record
from finegrained_rlhf.dialki.model.objective import LossConfig
from finegrained_rlhf.dialki.model.search import SearchConfig, Threshold, tune_threshold
from finegrained_rlhf.dialki.readers.base import DialogueReading
from finegrained_rlhf.dialki.readers.dstc11 import Dstc11Part
from finegrained_rlhf.dialki.readers.reading import DialogueData, Format
from finegrained_rlhf.dialki.training.systems import System, system_of
from finegrained_rlhf.dialki.training.trainer import DialkiBatchConfig, KnowledgeTrainer
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.loop.run import EXPORT_RECORD
from finegrained_rlhf.runtime.loop.types import LoopConfig, LoopResult
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.runtime.training_run import TrainingRun

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TrainDialki(TrainingRun[tuple[KnowledgeTrainer, dict[str, Any]]]):
    """Train DIALKI, or a baseline, on dialogues whose agent turns name the knowledge that they rest on.

    Fields of every training run: see `TrainingRun`; without `total_steps`, `epochs` counts.

    Attributes:
        data: dialogues to train on (a directory for `dstc11`).
        model: directory or Hub name of the encoder to start from.
        optimizer: rates and schedule.
        format: of `data` and `validation_data`: `jsonl`, `doc2dial`, `wow` or `dstc11`.
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

    data: str
    model: ModelPath
    optimizer: OptimizerConfig
    format: Format = "jsonl"
    documents: str | None = None
    part: Dstc11Part = "all"
    validation_data: str | None = None
    validation_part: Dstc11Part = "all"
    validation_examples: int | None = None
    dialki: DialkiConfig = field(default_factory=DialkiConfig)
    losses: LossConfig = field(default_factory=LossConfig)
    history_labels: HistoryLabels = "all"
    batches: DialkiBatchConfig = field(default_factory=DialkiBatchConfig)
    epochs: float = 20
    dropout: float | None = None

    def __post_init__(self) -> None:
        check_history_labels(self.history_labels)
        if self.epochs <= 0:
            raise ConfigError(f"epochs: expected more than 0, got {self.epochs}")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout: expected null or 0 <= dropout < 1, got {self.dropout}")
        if self.validation_examples is not None and self.validation_examples < 1:
            raise ConfigError(f"validation_examples: expected null or at least 1, got {self.validation_examples}")
        if self.dialki.parity:
            raise ConfigError("dialki.parity: a model is trained with masked logits; parity compares trained weights")
        if self.system.losses == "next" and (self.losses.history or self.losses.adversarial):
            raise ConfigError(
                f"{self.system.name} has one loss: give losses.history=0 and losses.adversarial=0, or baseline=bertqa"
            )
        if self.system.losses == "next" and self.losses.gold != "one":
            raise ConfigError(f"losses.gold: {self.system.name} learns one answer at a time, expected one")
        if self.losses.gold == "each" and self.dialki.units != "whole":
            raise ConfigError("losses.gold: each asks of passages without spans, expected dialki.units=whole")
        self._source()
        super().__post_init__()

    def _source(self, validation: bool = False) -> DialogueData:
        """Where the examples come from; Doc2Dial's validation documents are seen where training has them."""
        path = self.validation_data if validation and self.validation_data is not None else self.data
        return DialogueData(
            path,
            self.format,
            documents=self.documents,
            seen_in=self.data if validation and self.format == "doc2dial" else None,
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
        trainer, report = built
        result = self.fit(trainer, self.loop_config(len(trainer.train)), processes, run)
        self._finish(trainer, run, result, report, processes)
        return result

    @property
    def system(self) -> System:
        """DIALKI, Multi-Sentence or BERTQA."""
        return system_of(self.dialki)

    def assemble(self, processes: Processes, run: RunDirectory) -> tuple[KnowledgeTrainer, dict[str, Any]]:
        """Load model and data; also gives what was read and what did not fit, ready for JSON.

        Raises:
            DataError: broken data, or nothing is left to train on.
            ModelError: `model` is no encoder.
        """
        model = new_model(self.model, self.dialki, self.system.model)
        encoder = self.system.finder.new_encoder(model)
        source = self._source()
        reading = source.read()
        examples = [keep_history_labels(item, self.history_labels, self.seed) for item in reading.examples]
        train, cut = encoder.encode(examples, training=True)
        report = {"train": _told("training", reading, cut)}
        if not train:
            raise DataError(f"no dialogue with gold is left to train on ({cut})", file=source.path)
        validation: Sequence[Any] = []
        if self.validation_data is not None:
            reading = self._source(validation=True).read()
            labelled = [item for item in reading.examples if item.gold][: self.validation_examples]
            validation, cut = encoder.encode(labelled)
            report["validation"] = _told("validation", reading, cut)
        trainer = self.system.trainer(
            model,
            train,
            validation,
            self.batches,
            self.losses,
            self.optimizer,
            self.steps(len(train)),
            processes,
            seed=self.seed,
            dropout=self.dropout,
        )
        return trainer, report

    def _finish(
        self,
        trainer: KnowledgeTrainer,
        run: RunDirectory,
        result: LoopResult,
        report: dict[str, Any],
        processes: Processes,
    ) -> None:
        """Write `metrics.json`, and γ into the exported model."""
        exported = run.final("model")
        best = load_model(exported, read_record(exported, self.system.config), self.system.model).to(processes.device)
        trainer.model = trainer.finder.model = best
        answers = trainer.answers()
        threshold = tuned(trainer.validation, [found for found, _ in answers], best.config.search)
        if processes.is_main:
            searched = Coverage.of(found.coverage for found, _ in answers)
            searched.warn()
            groups = summaries(
                [item.record for item in trainer.validation],
                [score for _, score in answers],
                [item.document_length for item in trainer.validation],
                edges := length_edges(self.format),
            )
            if threshold is not None and best.config.threshold != threshold.value:
                best.config = replace(best.config, threshold=threshold.value)
                export = (run.final("model") / EXPORT_RECORD).read_text(encoding="utf-8")
                with atomic_directory(run.final("model")) as directory:
                    best.save(directory)
                    (directory / EXPORT_RECORD).write_text(export, encoding="utf-8")
            run.write_results(
                {
                    "best_step": result.best_step,
                    "steps": result.step,
                    "train_examples": len(trainer.train),
                    "validation": groups,
                    "edges": {name: list(numbers) for name, numbers in edges.items()},
                    "searched": searched.to_json(),
                    "threshold": None if threshold is None else {"gamma": threshold.value, "passage_f1": threshold.f1},
                    "data": report,
                },
            )
            shown = {name: groups["all"][name] for name in ("exact_match", "f1", "passage_accuracy")} if groups else {}
            text = ", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in shown.items())
            print(f"{self.system.name}: best at step {result.best_step}, validation: {text or 'none'}")
        processes.barrier()


def _told(what: str, reading: DialogueReading, cut: InputReport) -> dict[str, Any]:
    """Say what was read and what did not fit; the same for JSON."""
    skipped = sum(reading.skipped.values())
    logger.info("%s data: %s%s", what, cut, f", {skipped} turns skipped by the reader" if skipped else "")
    return {"read": reading.report(), "inputs": cut.to_json()}


def tuned(items: Sequence[Any], found: Sequence[Found], search: SearchConfig) -> Threshold | None:
    """γ tuned on answered dialogues: the highest mean F1 of the sets of passages (`tune_threshold`).

    Args:
        items: encoded dialogues with gold.
        found: their answers.
        search: passages of an answer at most, and what γ is compared with.
    """
    gold = []
    for item, answer in zip(items, found, strict=True):
        place = {passage: m for m, passage in enumerate(answer.searched)}
        # gold passages out of reach count as missed: no place is negative
        gold.append(frozenset(place.get(k.passage, -1 - k.passage) for k in item.record.gold))
    scores = [answer.scores(search.select_by) for answer in found]
    return tune_threshold(scores, gold, search.most, select_by=search.select_by)
