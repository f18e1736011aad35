"""Measuring a trained DIALKI or baseline as a configuration: what `finegrained evaluate-dialki` builds and runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import InputFile, ModelName, OutputDirectory, OutputFile, at_least, harmless
from finegrained_rlhf.core.sources import Part
from finegrained_rlhf.dialki.data import DialogueData, shared_task_of
from finegrained_rlhf.dialki.evaluation.errors import check_errors_file
from finegrained_rlhf.dialki.finding.scores import CONTEXT_EDGES, length_edges
from finegrained_rlhf.dialki.model.search import ScoreBy
from finegrained_rlhf.runtime.process_config import ProcessConfig


@dataclass(frozen=True)
class EvaluateDialki(Settings):
    """Measure a trained model: exact match, F1 and passage accuracy by group, and how near turns are to the input.

    Attributes:
        checkpoint: run directory or model directory of a trained DIALKI, Multi-Sentence or BERTQA.
        data: dialogues with gold (a directory for `dstc11`); those without are counted and left out.
        output_dir: gets `evaluation.json`, `answers.jsonl` (one line a dialogue) and the plots `gates` and `lengths`
            as SVG and PNG (the baselines have no `gates`).
        format: of `data`: `jsonl`, or one that a package reads, as the laboratory `doc2dial`, `wow` and `dstc11`.
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

    checkpoint: ModelName
    data: InputFile
    output_dir: OutputDirectory
    format: str = "jsonl"
    documents: InputFile | None = None
    seen_in: InputFile | None = None
    unseen: bool | None = None
    part: Part = "all"
    limit: Annotated[int | None, at_least(1)] = None
    turns: Annotated[int, at_least(1)] = 4
    score_by: ScoreBy | None = None
    context_edges: tuple[int, int] = CONTEXT_EDGES
    document_edges: tuple[int, int] | None = None
    plots: bool = True
    shared_task: OutputFile | None = None
    ensemble: Sequence[ModelName] = ()
    errors: OutputFile | None = None
    error_sample: int = 50
    error_seed: int = 0
    batch_size: Annotated[int, at_least(1), harmless] = 16
    processes: ProcessConfig = field(default_factory=ProcessConfig)

    def __post_init__(self) -> None:
        for name in ("context_edges", "document_edges"):
            edges = getattr(self, name)
            if edges is not None:
                object.__setattr__(self, name, tuple(edges))
                if len(edges) != 2 or not 0 <= edges[0] < edges[1]:
                    raise ConfigError(f"{name}: expected two whole numbers, the second larger, got {list(edges)}")
        if self.shared_task is not None:
            shared_task_of(self.format)
        check_errors_file(self.errors, self.error_sample)
        self.source()

    def source(self) -> DialogueData:
        """Where the dialogues come from."""
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
        from finegrained_rlhf.dialki.evaluation.evaluate import evaluate

        evaluate(self)
