"""Answering dialogues as a configuration: what `finegrained generate-responses` builds and runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import InputFile, ModelName, OutputFile, Seed, at_least, harmless
from finegrained_rlhf.core.sources import Part
from finegrained_rlhf.dialki.data import DialogueData
from finegrained_rlhf.dialki.responses.inputs import KnowledgeInput, ResponseInput
from finegrained_rlhf.inference.config import DecodingConfig
from finegrained_rlhf.runtime.console import STANDARD_OUTPUT
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.text.plain_text import TooLong
from finegrained_rlhf.text.segmentation import DEFAULT_SEGMENTER


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
        from finegrained_rlhf.dialki.responses.generate import generate

        return generate(self)
