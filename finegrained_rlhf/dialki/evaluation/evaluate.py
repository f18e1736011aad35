"""Measuring a trained DIALKI or baseline on dialogues with gold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import write_json, write_jsonl
from finegrained_rlhf.dialki.evaluation.answers import Answered, answered, gate_summary
from finegrained_rlhf.dialki.evaluation.errors import write_errors
from finegrained_rlhf.dialki.evaluation.job import EvaluateDialki
from finegrained_rlhf.dialki.evaluation.plots import draw_gates, draw_lengths
from finegrained_rlhf.dialki.evaluation.shared_task import (
    read_shared_task,
    score_shared_task,
    shared_task_row,
)
from finegrained_rlhf.dialki.finding.coverage import Coverage
from finegrained_rlhf.dialki.finding.finder import Finder
from finegrained_rlhf.dialki.finding.scores import summaries
from finegrained_rlhf.dialki.inputs.report import InputReport
from finegrained_rlhf.dialki.readers.base import DialogueReading
from finegrained_rlhf.dialki.training.systems import load_finder
from finegrained_rlhf.report.charts.plots import load_pyplot
from finegrained_rlhf.runtime.console import progress_bar
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.text.tables import markdown_table


def evaluate(job: EvaluateDialki) -> None:
    """Answer, measure, write and print as a job says."""
    processes = Processes(job.processes)
    if job.plots:
        load_pyplot("plots=true")  # before the work, not after it
    reading = job.source().read()
    labelled = [example for example in reading.examples if example.gold][: job.limit]
    if not labelled:
        raise DataError("no dialogue names its gold knowledge, so nothing can be scored", file=job.data)
    finder = load_finder(job.checkpoint, processes, job.ensemble, batch_size=job.batch_size)
    if job.score_by is not None:
        config = finder.model.config
        finder.model.config = replace(config, search=replace(config.search, score_by=job.score_by))
    items, cut = finder.encoder.encode(labelled)
    answers = _answers(job, finder, items)
    if processes.is_main:
        Coverage.of(one.found.coverage for one in answers).warn()
        system, models = finder.model.config.system, 1 + len(job.ensemble)
        about = {"system": system, "models": models, "data": _read(reading, cut)}
        _write(job, items, answers, about | _measured(job, items, answers) | _more(job, items, answers))
    processes.barrier()


def _answers(job: EvaluateDialki, finder: Finder[Any], items: Sequence[Any]) -> list[Answered]:
    """The answers to all dialogues, in order, in every process."""
    processes = finder.processes
    share = [items[i] for i in processes.share(len(items))]
    answers: list[Answered] = []
    with progress_bar("evaluating", len(share), "dialogue", processes.is_main) as bar:
        for start in range(0, len(share), job.batch_size):
            answers += answered(finder, share[start : start + job.batch_size], job.turns)
            bar.update(len(answers) - bar.n)
    return processes.gather_objects(answers)


def _measured(job: EvaluateDialki, items: Sequence[Any], answers: Sequence[Answered]) -> dict[str, Any]:
    """What `evaluation.json` says of the answers: scores by group, and the gates."""
    groups = summaries(
        [item.record for item in items],
        [one.score for one in answers],
        [item.document_length for item in items],
        job.edges,
    )
    return {
        "groups": groups,
        "searched": Coverage.of(one.found.coverage for one in answers).to_json(),
        "edges": {name: list(edges) for name, edges in job.edges.items()},
        "gate_similarity": gate_summary(answers),
    }


def _more(job: EvaluateDialki, items: Sequence[Any], answers: Sequence[Answered]) -> dict[str, Any]:
    """Write the files that were asked for; what `evaluation.json` says of them."""
    records, results = [item.record for item in items], dict[str, Any]()
    if job.shared_task is not None:  # scored as it lies on the disk
        write_json(job.shared_task, [shared_task_row(one.found) for one in answers])
        results["shared_task"] = score_shared_task(read_shared_task(job.shared_task), records)
    if job.errors is not None:
        results["errors"] = write_errors(job.errors, records, answers, job.error_sample, job.error_seed)
    return results


def _write(job: EvaluateDialki, items: Sequence[Any], answers: Sequence[Answered], result: Mapping[str, Any]) -> None:
    output = Path(job.output_dir)
    rows = (one.to_json(item.record) for item, one in zip(items, answers, strict=True))
    write_jsonl(output / "answers.jsonl", rows)
    write_json(output / "evaluation.json", result)
    if job.plots and result["gate_similarity"]:
        draw_gates(result["gate_similarity"], [output / f"gates.{kind}" for kind in ("svg", "png")])
    if job.plots:
        draw_lengths(result["groups"], job.edges, [output / f"lengths.{kind}" for kind in ("svg", "png")])
    table = [{"group": name, **values} for name, values in result["groups"].items()]
    print(f"{markdown_table(table, list(table[0]))}-> {output}")


def _read(reading: DialogueReading, cut: InputReport) -> dict[str, Any]:
    """What was read and what did not fit, ready for JSON."""
    unlabelled = sum(not example.gold for example in reading.examples)
    return {"read": reading.report(), "without_gold": unlabelled, "inputs": cut.to_json()}
