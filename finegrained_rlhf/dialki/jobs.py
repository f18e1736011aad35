"""Using a trained DIALKI or baseline as a configuration: the jobs behind three commands.

`finegrained evaluate-dialki` measures it, `finegrained identify-knowledge` answers files of dialogues, or one from the
command line, and `finegrained generate-responses` lets a generator put what it found into words.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import InputFile, ModelName, OutputDirectory, OutputFile, Seed, at_least, harmless
from finegrained_rlhf.core.sources import Part
from finegrained_rlhf.dialki.data import DialogueData, parse_dialogue, shared_task_of
from finegrained_rlhf.dialki.model.search import ScoreBy
from finegrained_rlhf.dialki.records import DialogueExample
from finegrained_rlhf.dialki.responses import KnowledgeInput, ResponseInput
from finegrained_rlhf.dialki.scores import CONTEXT_EDGES, Coverage, Searched, length_edges
from finegrained_rlhf.inference.config import DecodingConfig
from finegrained_rlhf.runtime.console import STANDARD_OUTPUT, ProgressBar, writable
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.text.plain_text import TooLong
from finegrained_rlhf.text.segmentation import DEFAULT_SEGMENTER, SpacySegmenter

if TYPE_CHECKING:
    from finegrained_rlhf.dialki.finder import Finder, Found


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
    error_sample: Annotated[int, at_least(1)] = 50
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
        if self.errors is not None and Path(self.errors).suffix != ".jsonl":
            raise ConfigError(f"errors: expected a file NAME.jsonl, beside which NAME.md is written, got {self.errors}")
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
        from finegrained_rlhf.dialki.evaluation import evaluate

        evaluate(self)


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
        format: of `input`: `jsonl`, or one that a package reads, as the laboratory `doc2dial`, `wow` and `dstc11`.
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
    format: str = "jsonl"
    documents: InputFile | None = None
    part: Part = "all"
    segmenter: str = DEFAULT_SEGMENTER
    shared_task: OutputFile | None = None
    ensemble: Sequence[ModelName] = ()
    batch_size: Annotated[int, at_least(1), harmless] = 16
    processes: ProcessConfig = field(default_factory=ProcessConfig)

    def __post_init__(self) -> None:
        if self.input is not None and (self.turns or self.document is not None):
            raise ConfigError("input: expected either input, or turns and document")
        if self.input is not None:
            self.source(self.input)
        if self.shared_task is not None:
            shared_task_of(self.format)

    def source(self, path: str) -> DialogueData:
        """Where the dialogues of a file come from; those without gold are answered too."""
        blind = "keep_unlabelled" in DialogueData.options(self.format)
        return DialogueData(path, self.format, documents=self.documents, keep_unlabelled=blind, part=self.part)

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
            else self.source(self.input).read().examples
        )
        finder = load_finder(self.checkpoint, processes, self.ensemble, batch_size=self.batch_size)
        searched: list[Searched] = []
        answers: list[Found] = []
        try:
            with writable(self.output) as stream, ProgressBar("identifying", len(examples), "dialogues") as bar:
                for example, answer in self._answers(finder, examples):
                    stream.write(json.dumps(answer.to_json(example), ensure_ascii=False) + "\n")
                    searched.append(answer.coverage)
                    answers += [answer] if self.shared_task is not None else []
                    bar.update(1)
        except BrokenPipeError:  # whoever read standard output has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return
        Coverage.of(searched).warn()
        if self.shared_task is not None:
            shared_task_of(self.format)(self.shared_task, answers)
        if self.output != STANDARD_OUTPUT:
            print(f"{finder.report} -> {self.output}", file=sys.stderr)

    @staticmethod
    def _answers(finder: Finder[Any], examples: Sequence[DialogueExample]) -> Iterator[tuple[DialogueExample, Found]]:
        answers = (answer for batch in finder.stream(examples) for answer in batch)
        return zip(examples, answers, strict=True)


@dataclass(frozen=True)
class GenerateResponses(Settings):
    """Answer dialogues with a trained generator, and score the answers where the dialogues hold responses.

    Attributes:
        checkpoint: run directory, checkpoint or model directory of the generator.
        knowledge: what its input holds beside the dialogue, as in training (`response_data.MakeResponseData`).
        dialki: run directory or model directory of the DIALKI (or baseline) that finds span and passage; None takes the
            gold.
        input: dialogues (a directory for `dstc11`); None answers the dialogue given by `turns`.
        output: JSON lines to write; `-` for standard output. Each has `id`, `response`, `knowledge` (the places that
            the input shows: `passage`, `passage_id`, `title`, `begin`, `end`, `text`; where DIALKI found them as
            `finegrained identify-knowledge` writes them) and `reference` where it is known. With references a file
            `X.jsonl` gets `X.metrics.json` beside it: see `response_metrics`.
        turns: without `input`: the turns, oldest first; user and agent alternate, and the last one is the user's.
        document: without `input`: text or Markdown file; its paragraphs are the passages, its sentences the spans.
        format: of `input`: `jsonl`, or one that a package reads, as the laboratory `doc2dial`, `wow` and `dstc11`.
        documents: `doc2dial` only: the document file.
        keep_unlabelled: `doc2dial` only: answer turns without references too.
        part: `dstc11` only: the part to answer.
        segmenter: `rules` or the name of an installed spaCy pipeline; cuts `document`, and sentences for RougeLSum.
        max_turns: as in training.
        decoding: greedy by default; one response a dialogue, so `n` is 1.
        seed: of the sampling.
        max_new_tokens: longest response in tokens, end of sequence included.
        max_prompt_tokens: longest input in tokens.
        prompt_too_long: `truncate` (counted, with a warning) or `refuse`.
        batch_size: dialogues that are read, and answered, together in a process.
        processes: precision and CPU threads.
    """

    every_process: ClassVar[bool] = True

    checkpoint: ModelName
    knowledge: KnowledgeInput = "span"
    dialki: ModelName | None = None
    input: InputFile | None = None
    output: OutputFile = STANDARD_OUTPUT
    turns: Sequence[str] = ()
    document: InputFile | None = None
    format: str = "jsonl"
    documents: InputFile | None = None
    keep_unlabelled: bool = False
    part: Part = "all"
    segmenter: str = DEFAULT_SEGMENTER
    max_turns: int | None = None
    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    seed: Seed = 0
    max_new_tokens: int = 200
    max_prompt_tokens: int = 1024
    prompt_too_long: TooLong = "truncate"
    batch_size: Annotated[int, at_least(1), harmless] = 16
    processes: ProcessConfig = field(default_factory=ProcessConfig)

    def __post_init__(self) -> None:
        ResponseInput(self.knowledge, self.max_turns)
        if self.decoding.n != 1:
            raise ConfigError(f"one response a dialogue is written: leave decoding.n at 1, got {self.decoding.n}")
        if self.input is not None and (self.turns or self.document is not None):
            raise ConfigError("input: expected either input, or turns and document")
        if self.input is not None:
            self.source(self.input)

    def source(self, path: str) -> DialogueData:
        """Where the dialogues of a file come from."""
        return DialogueData(
            path, self.format, documents=self.documents, keep_unlabelled=self.keep_unlabelled, part=self.part
        )

    def run(self) -> dict[str, Any]:
        """Answer, score and write; the main process writes and prints. Returns the metrics, empty without references.

        Raises:
            ConfigError: neither a file nor a dialogue is given.
            ModelError: no readable model.
            DataError: no readable dialogue, or one without gold where the input needs it; nothing is written then.
        """
        from finegrained_rlhf.dialki.generation import generate

        return generate(self)
