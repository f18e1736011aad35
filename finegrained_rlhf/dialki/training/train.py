"""What a training of DIALKI, or of a baseline, begins with and what it leaves: the trainer, the metrics and γ."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import atomic_directory
from finegrained_rlhf.dialki.data import DialogueReading
from finegrained_rlhf.dialki.finder import Found
from finegrained_rlhf.dialki.inputs.history_labels import keep_history_labels
from finegrained_rlhf.dialki.inputs.report import InputReport
from finegrained_rlhf.dialki.model.model import load_model, new_model, read_record
from finegrained_rlhf.dialki.model.search import SearchConfig, Threshold, tune_threshold
from finegrained_rlhf.dialki.scores import Coverage, length_edges, summaries
from finegrained_rlhf.dialki.training.job import TrainDialki
from finegrained_rlhf.dialki.training.systems import system_of
from finegrained_rlhf.dialki.training.trainer import KnowledgeTrainer
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.loop.run import EXPORT_RECORD
from finegrained_rlhf.runtime.loop.types import LoopResult
from finegrained_rlhf.runtime.processes import Processes

logger = logging.getLogger(__name__)


def new_trainer(job: TrainDialki, processes: Processes) -> tuple[KnowledgeTrainer, dict[str, Any]]:
    """Load model and data; also gives what was read and what did not fit, ready for JSON.

    Raises:
        DataError: broken data, or nothing is left to train on.
        ModelError: `model` is no encoder.
    """
    system = system_of(job.dialki)
    model = new_model(job.model, job.dialki, system.model)
    encoder = system.finder.new_encoder(model)
    source = job.source()
    reading = source.read()
    examples = [keep_history_labels(item, job.history_labels, job.seed) for item in reading.examples]
    train, cut = encoder.encode(examples, training=True)
    report = {"train": _report("training", reading, cut)}
    if not train:
        raise DataError(f"no dialogue with gold is left to train on ({cut})", file=source.path)
    validation: Sequence[Any] = []
    if job.validation_data is not None:
        reading = job.source(validation=True).read()
        labelled = [item for item in reading.examples if item.gold][: job.validation_examples]
        validation, cut = encoder.encode(labelled)
        report["validation"] = _report("validation", reading, cut)
    trainer = system.trainer(
        model,
        train,
        validation,
        job.batches,
        job.losses,
        job.optimizer,
        job.steps(len(train)),
        processes,
        seed=job.seed,
        dropout=job.dropout,
    )
    return trainer, report


def write_results(
    job: TrainDialki,
    trainer: KnowledgeTrainer,
    run: RunDirectory,
    result: LoopResult,
    report: dict[str, Any],
    processes: Processes,
) -> None:
    """Answer the validation dialogues by the exported model; write `metrics.json`, and γ into that model."""
    system = system_of(job.dialki)
    exported = run.final("model")
    best = load_model(exported, read_record(exported, system.config), system.model).to(processes.device)
    trainer.model = trainer.finder.model = best
    answers = trainer.answers()
    threshold = tuned(trainer.validation, [answer for answer, _ in answers], best.config.search)
    if processes.is_main:
        searched = Coverage.of(answer.coverage for answer, _ in answers)
        searched.warn()
        groups = summaries(
            [item.record for item in trainer.validation],
            [score for _, score in answers],
            [item.document_length for item in trainer.validation],
            edges := length_edges(job.format),
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
        print(f"{job.dialki.system}: best at step {result.best_step}, validation: {text or 'none'}")
    processes.barrier()


def _report(what: str, reading: DialogueReading, cut: InputReport) -> dict[str, Any]:
    """Say what was read and what did not fit; the same for JSON."""
    skipped = sum(reading.skipped.values())
    logger.info("%s data: %s%s", what, cut, f", {skipped} turns skipped by the reader" if skipped else "")
    return {"read": reading.report(), "inputs": cut.to_json()}


def tuned(items: Sequence[Any], answers: Sequence[Found], search: SearchConfig) -> Threshold | None:
    """γ tuned on answered dialogues: the highest mean F1 of the sets of passages (`tune_threshold`).

    Args:
        items: encoded dialogues with gold.
        answers: their answers.
        search: passages of an answer at most, and what γ is compared with.
    """
    gold = []
    for item, answer in zip(items, answers, strict=True):
        place = {passage: m for m, passage in enumerate(answer.searched)}
        # gold passages out of reach count as missed: no place is negative
        gold.append(frozenset(place.get(k.passage, -1 - k.passage) for k in item.record.gold))
    scores = [answer.scores(search.select_by) for answer in answers]
    return tune_threshold(scores, gold, search.most, select_by=search.select_by)
