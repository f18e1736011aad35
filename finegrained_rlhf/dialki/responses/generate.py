"""Answering dialogues: DIALKI finds the knowledge, a sequence-to-sequence model puts it into words.

The job behind `scripts/generate_responses.py`. Knows finders, policies as text generators (the rollout engine) and
metrics of texts. Knows no training.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.core.hub.names import ModelPath
from finegrained_rlhf.dialki.evaluation.identify import spoken_dialogue
from finegrained_rlhf.dialki.finding.finder import Found
from finegrained_rlhf.dialki.readers.dstc11 import Dstc11Part
from finegrained_rlhf.dialki.readers.reading import DialogueData, Format
from finegrained_rlhf.dialki.records import DialogueExample
from finegrained_rlhf.dialki.responses.data import find_knowledge, found_scores, places_of
from finegrained_rlhf.dialki.responses.inputs import KnowledgeInput, ResponseInput, has_response
from finegrained_rlhf.dialki.training.systems import load_finder
from finegrained_rlhf.dialogue.records import Knowledge
from finegrained_rlhf.inference.config import DecodingConfig
from finegrained_rlhf.inference.evaluation import EvaluatedResponse, summarise, with_rouge_lsum
from finegrained_rlhf.inference.generate import open_generator
from finegrained_rlhf.inference.generator import Answering, respond
from finegrained_rlhf.inference.inputs.prompts import TooLong, encode_prompts
from finegrained_rlhf.runtime.console import STANDARD_OUTPUT, writable
from finegrained_rlhf.runtime.processes import ProcessConfig, Processes
from finegrained_rlhf.text.scores import exact_match, token_f1
from finegrained_rlhf.text.segmentation import DEFAULT_SEGMENTER
from finegrained_rlhf.text.templates import squeeze


@dataclass(frozen=True)
class GenerateResponses:
    """Answer dialogues with a trained generator, and score the answers where the dialogues hold responses.

    Attributes:
        checkpoint: run directory, checkpoint or model directory of the generator.
        knowledge: what its input holds beside the dialogue, as in training (`response_data.MakeResponseData`).
        dialki: run directory or model directory of the DIALKI (or baseline) that finds span and passage; None takes the
            gold.
        input: dialogues (a directory for `dstc11`); None answers the dialogue given by `turns`.
        output: JSON lines to write; `-` for standard output. Each has `id`, `response`, `knowledge` (the places that
            the input shows: `passage`, `passage_id`, `title`, `begin`, `end`, `text`; where DIALKI found them as
            `identify_knowledge.py` writes them) and `reference` where it is known. With references a file `X.jsonl`
            gets `X.metrics.json` beside it: see `response_metrics`.
        turns: without `input`: the turns, oldest first; user and agent alternate, and the last one is the user's.
        document: without `input`: text or Markdown file; its paragraphs are the passages, its sentences the spans.
        format: of `input`: `jsonl`, `doc2dial`, `wow` or `dstc11`.
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

    checkpoint: ModelPath
    knowledge: KnowledgeInput = "span"
    dialki: ModelPath | None = None
    input: str | None = None
    output: str = STANDARD_OUTPUT
    turns: Sequence[str] = ()
    document: str | None = None
    format: Format = "jsonl"
    documents: str | None = None
    keep_unlabelled: bool = False
    part: Dstc11Part = "all"
    segmenter: str = DEFAULT_SEGMENTER
    max_turns: int | None = None
    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    seed: int = 0
    max_new_tokens: int = 200
    max_prompt_tokens: int = 1024
    prompt_too_long: TooLong = "truncate"
    batch_size: int = 16
    processes: ProcessConfig = field(default_factory=ProcessConfig)

    def __post_init__(self) -> None:
        ResponseInput(self.knowledge, self.max_turns)
        if self.batch_size < 1:
            raise ConfigError(f"batch_size: expected at least 1, got {self.batch_size}")
        if self.decoding.n != 1:
            raise ConfigError(f"one response a dialogue is written: leave decoding.n at 1, got {self.decoding.n}")
        if self.input is not None and (self.turns or self.document is not None):
            raise ConfigError("input: expected either input, or turns and document")

    def run(self) -> dict[str, Any]:
        """Answer, score and write; the main process writes and prints. Returns the metrics, empty without references.

        Raises:
            ConfigError: neither a file nor a dialogue is given.
            ModelError: no readable model.
            DataError: no readable dialogue, or one without gold where the input needs it; nothing is written then.
        """
        processes = Processes(self.processes)
        examples, layout = self._examples(), ResponseInput(self.knowledge, self.max_turns)
        found: list[Found] | None = None
        if self.dialki is not None and layout.needs_places:
            finder = load_finder(self.dialki, processes, batch_size=self.batch_size)
            found = find_knowledge(finder, examples, processes, progress=self.input is not None)
            del finder  # its memory is the generator's now
        places = places_of(examples, found) if layout.needs_places else [()] * len(examples)
        rows = self._answers(examples, places, layout, processes)
        metrics = response_metrics(rows)
        if metrics:
            metrics = {**self._settings(), "dialogues": len(rows), **metrics, **found_scores(examples, found)}
        if processes.is_main:
            self._write(output_rows(examples, places, found, rows), metrics)
        return metrics

    def _examples(self) -> Sequence[DialogueExample]:
        if self.input is None:
            return spoken_dialogue(self.turns, self.document, self.segmenter)
        source = DialogueData(
            self.input,
            self.format,
            documents=self.documents,
            keep_unlabelled=self.keep_unlabelled,
            part=self.part,
        )
        return source.read().examples

    def _answers(
        self,
        examples: Sequence[DialogueExample],
        places: Sequence[Sequence[Knowledge]],
        layout: ResponseInput,
        processes: Processes,
    ) -> list[EvaluatedResponse]:
        """One response a dialogue, in order, in every process; the processes share the work."""
        try:
            texts = [layout.text(example, known) for example, known in zip(examples, places, strict=True)]
        except DataError as error:
            raise error.at(file=self.input) from None
        references = [(squeeze(e.response or ""),) if has_response(e) else () for e in examples]
        generator = open_generator(self.checkpoint, processes)
        prompts = encode_prompts(
            [(example.id, text) for example, text in zip(examples, texts, strict=True)],
            generator.tokenizer,
            self.max_prompt_tokens,
            self.prompt_too_long,
            [{"references": known} for known in references],
        )
        answering = Answering(
            self.decoding.build(), self.max_new_tokens, self.batch_size, self.seed, progress=self.input is not None
        )
        mine, groups = respond(generator, prompts, processes, answering)
        rows = [
            EvaluatedResponse(prompt, answer.text, answer.tokens, answer.finished)
            for prompt, (answer,) in zip(mine, groups, strict=True)
        ]
        return processes.gather_objects(with_rouge_lsum(rows, self.segmenter))

    def _settings(self) -> dict[str, Any]:
        """What the metrics were measured with."""
        settings = {key: getattr(self, key) for key in ("checkpoint", "input", "knowledge", "dialki", "max_turns")}
        if self.decoding != DecodingConfig():
            settings |= {**asdict(self.decoding), "seed": self.seed}
        return settings

    def _write(self, rows: Iterator[dict[str, Any]], metrics: dict[str, Any]) -> None:
        with writable(self.output) as stream:
            for row in rows:
                stream.write(json.dumps(row, ensure_ascii=False) + "\n")
        if self.output == STANDARD_OUTPUT or not metrics:
            return
        path = Path(self.output)
        write_json(path.with_name(f"{path.stem}.metrics.json"), metrics)
        width = max(map(len, metrics))
        for name, value in metrics.items():
            print(f"{name:{width}}  {value:.4f}" if isinstance(value, float) else f"{name:{width}}  {value}")


def response_metrics(rows: Sequence[EvaluatedResponse]) -> dict[str, Any]:
    """Scores of the responses whose reference is known; empty where there is none.

    `scored` (how many), `bleu` (of all together, in [0, 100], with `bleu_signature`), `token_f1` and `exact_match`
    (means in [0, 1] after SQuAD's normalisation), and what `inference.evaluation.summarise` gives: `rouge_lsum`,
    `mean_words`, `mean_tokens`, `finished_share`. An empty response counts as one without words.
    """
    from finegrained_rlhf.metrics import SacreBLEU, finite_mean

    known = [row for row in rows if row.prompt.metadata["references"]]
    if not known:
        return {}
    responses = [row.response for row in known]
    references = [row.prompt.metadata["references"][0] for row in known]
    pairs = list(zip(responses, references, strict=True))
    return {
        "scored": len(known),
        **SacreBLEU().compute(predictions=responses, references=[[reference] for reference in references]),
        "token_f1": finite_mean([token_f1(*pair) for pair in pairs]),
        "exact_match": finite_mean([float(exact_match(*pair)) for pair in pairs]),
        **summarise(known),
    }


def output_rows(
    examples: Sequence[DialogueExample],
    places: Sequence[Sequence[Knowledge]],
    found: Sequence[Found] | None,
    rows: Sequence[EvaluatedResponse],
) -> Iterator[dict[str, Any]]:
    """The lines of `GenerateResponses.output`."""
    for i, (example, row) in enumerate(zip(examples, rows, strict=True)):
        shown = [_place(example, place) for place in places[i]]
        if found is not None:
            shown = [{key: value for key, value in found[i].to_json(example).items() if key != "id"}]
        reference = {"reference": example.response} if has_response(example) else {}
        yield {"id": example.id, "response": row.response, "knowledge": shown, **reference}


def _place(example: DialogueExample, place: Knowledge) -> dict[str, Any]:
    passage = example.passages[place.passage]
    return {
        "passage": place.passage,
        "passage_id": passage.id,
        "title": passage.title,
        "begin": place.begin,
        "end": place.end,
        "text": example.text_of(place),
    }
