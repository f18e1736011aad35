"""Answering files of dialogues, or one from the command line: the job behind `finegrained identify-knowledge`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.core.markers import InputFile, ModelName, OutputFile, at_least, harmless
from finegrained_rlhf.dialki.evaluation.shared_task import require_shared_task, shared_task_row
from finegrained_rlhf.dialki.finding.coverage import Coverage, Searched
from finegrained_rlhf.dialki.readers.dstc11 import Dstc11Part
from finegrained_rlhf.dialki.readers.jsonl import parse_dialogue
from finegrained_rlhf.dialki.readers.reading import DialogueData, Format
from finegrained_rlhf.dialki.records import DialogueExample
from finegrained_rlhf.runtime.console import STANDARD_OUTPUT, ProgressBar, writable
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.text.segmentation import DEFAULT_SEGMENTER, SpacySegmenter

if TYPE_CHECKING:
    from finegrained_rlhf.dialki.finding.finder import Finder, Found


def document_passages(path: str | Path) -> list[dict[str, str]]:
    """The passages of a text or Markdown file: paragraphs between blank lines, under the heading (`# …`) before them.

    Returns:
        `{"title", "text"}` of each; the title is empty before the first heading.

    Raises:
        DataError: the file is missing, no UTF-8 text, or holds no paragraph.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (FileNotFoundError, IsADirectoryError):
        raise DataError("no such file", file=path) from None
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8 text ({error.reason} at byte {error.start})", file=path) from None
    passages: list[dict[str, str]] = []
    title, lines = "", list[str]()
    for line in [*text.splitlines(), ""]:
        heading = line.startswith("#")
        if (heading or not line.strip()) and lines:
            passages.append({"title": title, "text": " ".join(lines)})
            lines = []
        if heading:
            title = line.lstrip("#").strip()
        elif line.strip():
            lines.append(line.strip())
    if not passages:
        raise DataError("holds no paragraph, expected at least one", file=path)
    return passages


def spoken_dialogue(
    turns: Sequence[str], document: str | Path | None, segmenter: str = DEFAULT_SEGMENTER
) -> tuple[DialogueExample]:
    """The one dialogue that a command line spells: the turns alternate and the last one is the user's.

    Raises:
        ConfigError: turns or document are missing.
        DataError: a broken document or an empty turn.
    """
    if not turns or document is None:
        raise ConfigError("give input=FILE, or turns=[…] and document=FILE")
    roles = ("user", "agent")
    spoken = [{"role": roles[(len(turns) - 1 - i) % 2], "text": text} for i, text in enumerate(turns)]
    row = {"id": "dialogue", "turns": spoken, "passages": document_passages(document)}
    try:
        (example,) = parse_dialogue(row, segmenter=SpacySegmenter(segmenter))
    except DataError as error:
        raise error.at(file=document) from None
    return (example,)


@dataclass(frozen=True)
class IdentifyKnowledge(Settings):
    """Find the knowledge that the next agent turn of dialogues rests on, as JSON lines.

    Attributes:
        checkpoint: run directory or model directory of a trained DIALKI or baseline.
        input: file of dialogues (a directory for `dstc11`); None answers the dialogue given by `turns`.
        output: JSON lines to write, batch by batch; `-` for standard output. Each has `id`, `passage` (index),
            `passage_id`, `title`, `begin`, `end` (spans), `text`, `probability` (of the passage), `begin_probability`,
            `end_probability`, `score` (of the run of spans), `passages` (those above γ), and what was searched:
            `searched_passages`, `total_passages`, `dropped_spans`.
        turns: without `input`: the turns, oldest first; user and agent alternate, and the last one is the user's.
        document: without `input`: text or Markdown file; its paragraphs are the passages, its sentences the spans.
        format: of `input`: `jsonl`, `doc2dial`, `wow` or `dstc11`.
        documents: `doc2dial` only: the document file.
        part: `dstc11` only: the part to answer.
        segmenter: `rules` or the name of an installed spaCy pipeline; cuts `document` into sentences.
        shared_task: `doc2dial` only: JSON file that gets the answers as the DialDoc shared task's scoring reads them.
        ensemble: further DIALKIs (run or model directories) whose distributions are averaged with the checkpoint's.
        batch_size: dialogues that are encoded together.
        processes: precision and CPU threads.
    """

    checkpoint: ModelName
    input: InputFile | None = None
    output: OutputFile = STANDARD_OUTPUT
    turns: Sequence[str] = ()
    document: InputFile | None = None
    format: Format = "jsonl"
    documents: InputFile | None = None
    part: Dstc11Part = "all"
    segmenter: str = DEFAULT_SEGMENTER
    shared_task: OutputFile | None = None
    ensemble: Sequence[ModelName] = ()
    batch_size: Annotated[int, at_least(1), harmless] = 16
    processes: ProcessConfig = field(default_factory=ProcessConfig)

    def __post_init__(self) -> None:
        if self.input is not None and (self.turns or self.document is not None):
            raise ConfigError("input: expected either input, or turns and document")
        require_shared_task(self.shared_task, self.format)

    def run(self) -> None:
        """Answer and write.

        Raises:
            ConfigError: neither a file nor a dialogue is given, or started in several processes.
            ModelError: no readable model.
            DataError: no readable dialogue; nothing is written then.
        """
        from finegrained_rlhf.dialki.training.systems import load_finder
        from finegrained_rlhf.runtime.processes import Processes

        processes = Processes(self.processes)
        if processes.count > 1:
            raise ConfigError("finegrained identify-knowledge streams from one process")
        examples = (
            spoken_dialogue(self.turns, self.document, self.segmenter)
            if self.input is None
            else DialogueData(
                self.input,
                self.format,
                documents=self.documents,
                keep_unlabelled=self.format == "doc2dial",
                part=self.part,
            )
            .read()
            .examples
        )
        finder = load_finder(self.checkpoint, processes, self.ensemble, batch_size=self.batch_size)
        searched: list[Searched] = []
        predictions: list[dict[str, Any]] = []
        try:
            with writable(self.output) as stream, ProgressBar("identifying", len(examples), "dialogues") as bar:
                for example, answer in self._answers(finder, examples):
                    stream.write(json.dumps(answer.to_json(example), ensure_ascii=False) + "\n")
                    searched.append(answer.coverage)
                    predictions.append(shared_task_row(answer))
                    bar.update(1)
        except BrokenPipeError:  # whoever read standard output has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return
        Coverage.of(searched).warn()
        if self.shared_task is not None:
            write_json(self.shared_task, predictions)
        if self.output != STANDARD_OUTPUT:
            print(f"{finder.report} -> {self.output}", file=sys.stderr)

    @staticmethod
    def _answers(finder: Finder[Any], examples: Sequence[DialogueExample]) -> Iterator[tuple[DialogueExample, Found]]:
        answers = (answer for batch in finder.stream(examples) for answer in batch)
        return zip(examples, answers, strict=True)
