"""Measuring a trained DIALKI or baseline on dialogues with gold: the job behind `scripts/evaluate_dialki.py`.

Knows finders, readers, scores and what is written of them. Does not know training or how plots are drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import write_json, write_jsonl
from finegrained_rlhf.core.hub.names import ModelPath
from finegrained_rlhf.dialki.evaluation.errors import check_errors_file, write_errors
from finegrained_rlhf.dialki.evaluation.plots import draw_gates, draw_lengths
from finegrained_rlhf.dialki.evaluation.shared_task import (
    read_shared_task,
    require_shared_task,
    score_shared_task,
    shared_task_row,
)
from finegrained_rlhf.dialki.finding.coverage import Coverage
from finegrained_rlhf.dialki.finding.scores import CONTEXT_EDGES, length_edges, summaries
from finegrained_rlhf.dialki.inputs.report import InputReport
from finegrained_rlhf.dialki.model.search import ScoreBy
from finegrained_rlhf.dialki.readers.base import DialogueReading
from finegrained_rlhf.dialki.readers.dstc11 import Dstc11Part
from finegrained_rlhf.dialki.readers.reading import DialogueData, Format
from finegrained_rlhf.report.charts.plots import load_pyplot
from finegrained_rlhf.runtime.console import progress_bar
from finegrained_rlhf.runtime.processes import ProcessConfig, Processes
from finegrained_rlhf.text.tables import markdown_table

if TYPE_CHECKING:
    from finegrained_rlhf.dialki.evaluation.answers import Answered
    from finegrained_rlhf.dialki.finding.finder import Finder


@dataclass(frozen=True)
class EvaluateDialki:
    """Measure a trained model: exact match, F1 and passage accuracy by group, and how near turns are to the input.

    Attributes:
        checkpoint: run directory or model directory of a trained DIALKI, Multi-Sentence or BERTQA.
        data: dialogues with gold (a directory for `dstc11`); those without are counted and left out.
        output_dir: gets `evaluation.json`, `answers.jsonl` (one line a dialogue) and the plots `gates` and `lengths`
            as SVG and PNG (the baselines have no `gates`).
        format: of `data`: `jsonl`, `doc2dial`, `wow` or `dstc11`.
        documents: `doc2dial` only: the document file.
        seen_in: `doc2dial` only: training dialogues; documents that do not occur there count as unseen.
        unseen: `wow` only: whether the topics are absent from training; None takes it from the file's name.
        part: `dstc11` only: the part to measure on.
        limit: use at most so many dialogues; None uses all.
        turns: latest turns whose gate similarity is shown.
        score_by: how passage and spans are chosen (`SearchConfig`); None takes what the model was trained with.
        context_edges: last number of earlier turns that is a short dialogue, and a medium one.
        document_edges: last number of tokens that is a short document, and a medium one; None takes the thesis's
            (500 and 1,000; on `wow` 800 and 1,600).
        plots: draw; needs matplotlib.
        shared_task: `doc2dial` only: JSON file that gets the answers as the DialDoc shared task's scoring reads them;
            what it says of the file stands in `evaluation.json`.
        ensemble: further DIALKIs (run or model directories) whose distributions are averaged with the checkpoint's;
            there are no `gates` then.
        errors: JSON lines that get a sample of the wrong answers, and a page of them with `.md` in place of `.jsonl`.
        error_sample: wrong answers to draw; all where there are fewer.
        error_seed: of the draw.
        batch_size: dialogues in one forward pass.
        processes: precision and CPU threads.
    """

    every_process: ClassVar[bool] = True

    checkpoint: ModelPath
    data: str
    output_dir: str
    format: Format = "jsonl"
    documents: str | None = None
    seen_in: str | None = None
    unseen: bool | None = None
    part: Dstc11Part = "all"
    limit: int | None = None
    turns: int = 4
    score_by: ScoreBy | None = None
    context_edges: tuple[int, int] = CONTEXT_EDGES
    document_edges: tuple[int, int] | None = None
    plots: bool = True
    shared_task: str | None = None
    ensemble: Sequence[ModelPath] = ()
    errors: str | None = None
    error_sample: int = 50
    error_seed: int = 0
    batch_size: int = 16
    processes: ProcessConfig = field(default_factory=ProcessConfig)

    def __post_init__(self) -> None:
        if min(self.batch_size, self.turns, 1 if self.limit is None else self.limit) < 1:
            raise ConfigError(f"batch_size, turns and limit: expected at least 1, got {self}")
        for name in ("context_edges", "document_edges"):
            edges = getattr(self, name)
            if edges is not None:
                object.__setattr__(self, name, tuple(edges))
                if len(edges) != 2 or not 0 <= edges[0] < edges[1]:
                    raise ConfigError(f"{name}: expected two whole numbers, the second larger, got {list(edges)}")
        require_shared_task(self.shared_task, self.format)
        check_errors_file(self.errors, self.error_sample)
        self._source()

    def _source(self) -> DialogueData:
        return DialogueData(
            self.data,
            self.format,
            documents=self.documents,
            seen_in=self.seen_in,
            unseen=self.unseen,
            part=self.part,
        )

    @property
    def edges(self) -> dict[str, tuple[int, int]]:
        """What is short and what is medium, for `context` and `document`."""
        usual = length_edges(self.format)
        return {"context": self.context_edges, "document": self.document_edges or usual["document"]}

    def run(self) -> None:
        """Answer, measure, write and print.

        Raises:
            ConfigError: the plots need matplotlib, and it is not installed.
            ModelError: no readable model.
            DataError: broken data, or no dialogue has gold.
        """
        from finegrained_rlhf.dialki.training.systems import load_finder

        processes = Processes(self.processes)
        if self.plots:
            load_pyplot("plots=true")  # before the work, not after it
        reading = self._source().read()
        labelled = [example for example in reading.examples if example.gold][: self.limit]
        if not labelled:
            raise DataError("no dialogue names its gold knowledge, so nothing can be scored", file=self.data)
        finder = load_finder(self.checkpoint, processes, self.ensemble, batch_size=self.batch_size)
        if self.score_by is not None:
            config = finder.model.config
            finder.model.config = replace(config, search=replace(config.search, score_by=self.score_by))
        items, cut = finder.encoder.encode(labelled)
        answers = self._answers(finder, items)
        if processes.is_main:
            Coverage.of(one.found.coverage for one in answers).warn()
            system, models = finder.model.config.system, 1 + len(self.ensemble)
            about = {"system": system, "models": models, "data": _read(reading, cut)}
            self._write(items, answers, about | self.measured(items, answers) | self._more(items, answers))
        processes.barrier()

    def _answers(self, finder: Finder[Any], items: Sequence[Any]) -> list[Answered]:
        """The answers to all dialogues, in order, in every process."""
        from finegrained_rlhf.dialki.evaluation.answers import answered

        processes = finder.processes
        mine = [items[i] for i in processes.share(len(items))]
        answers: list[Answered] = []
        with progress_bar("evaluating", len(mine), "dialogue", processes.is_main) as bar:
            for start in range(0, len(mine), self.batch_size):
                answers += answered(finder, mine[start : start + self.batch_size], self.turns)
                bar.update(len(answers) - bar.n)
        return processes.gather_objects(answers)

    def measured(self, items: Sequence[Any], answers: Sequence[Answered]) -> dict[str, Any]:
        """What `evaluation.json` says of the answers: scores by group, and the gates."""
        from finegrained_rlhf.dialki.evaluation.answers import gate_summary

        groups = summaries(
            [item.record for item in items],
            [one.score for one in answers],
            [item.document_length for item in items],
            self.edges,
        )
        return {
            "groups": groups,
            "searched": Coverage.of(one.found.coverage for one in answers).to_json(),
            "edges": {name: list(edges) for name, edges in self.edges.items()},
            "gate_similarity": gate_summary(answers),
        }

    def _more(self, items: Sequence[Any], answers: Sequence[Answered]) -> dict[str, Any]:
        """Write the files that were asked for; what `evaluation.json` says of them."""
        records, said = [item.record for item in items], dict[str, Any]()
        if self.shared_task is not None:  # scored as it lies on the disk
            write_json(self.shared_task, [shared_task_row(one.found) for one in answers])
            said["shared_task"] = score_shared_task(read_shared_task(self.shared_task), records)
        if self.errors is not None:
            said["errors"] = write_errors(self.errors, records, answers, self.error_sample, self.error_seed)
        return said

    def _write(self, items: Sequence[Any], answers: Sequence[Answered], result: Mapping[str, Any]) -> None:
        output = Path(self.output_dir)
        rows = (one.to_json(item.record) for item, one in zip(items, answers, strict=True))
        write_jsonl(output / "answers.jsonl", rows)
        write_json(output / "evaluation.json", result)
        if self.plots and result["gate_similarity"]:
            draw_gates(result["gate_similarity"], [output / f"gates.{kind}" for kind in ("svg", "png")])
        if self.plots:
            draw_lengths(result["groups"], self.edges, [output / f"lengths.{kind}" for kind in ("svg", "png")])
        table = [{"group": name, **values} for name, values in result["groups"].items()]
        print(f"{markdown_table(table, list(table[0]))}-> {output}")


def _read(reading: DialogueReading, cut: InputReport) -> dict[str, Any]:
    """What was read and what did not fit, ready for JSON."""
    unlabelled = sum(not example.gold for example in reading.examples)
    return {"read": reading.report(), "without_gold": unlabelled, "inputs": cut.to_json()}
