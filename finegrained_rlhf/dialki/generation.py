"""Answering dialogues: DIALKI finds the knowledge, a sequence-to-sequence model puts it into words."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.dialki.finder import Found
from finegrained_rlhf.dialki.jobs import GenerateResponses, spoken_dialogue
from finegrained_rlhf.dialki.records import DialogueExample
from finegrained_rlhf.dialki.responses import ResponseInput, find_knowledge, has_response, knowledge_scores, places_of
from finegrained_rlhf.dialki.training.systems import load_finder
from finegrained_rlhf.dialogue.records import Knowledge
from finegrained_rlhf.inference.config import DecodingConfig
from finegrained_rlhf.inference.evaluation import EvaluatedResponse, summarise, with_rouge_lsum
from finegrained_rlhf.inference.generate import open_generator
from finegrained_rlhf.inference.generator import Answering, respond
from finegrained_rlhf.inference.inputs import encode_prompts
from finegrained_rlhf.runtime.console import STANDARD_OUTPUT, writable
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.text.scores import exact_match, token_f1
from finegrained_rlhf.text.templates import squeeze


def generate(job: GenerateResponses) -> dict[str, Any]:
    """Answer, score and write as a job says. The metrics, empty without references."""
    processes = Processes(job.processes)
    examples, layout = _examples(job), ResponseInput(job.knowledge, job.max_turns)
    answers: list[Found] | None = None
    if job.dialki is not None and layout.needs_places:
        finder = load_finder(job.dialki, processes, batch_size=job.batch_size)
        answers = find_knowledge(finder, examples, processes, progress=job.input is not None)
        del finder  # its memory is the generator's now
    places = places_of(examples, answers) if layout.needs_places else [()] * len(examples)
    rows = _answers(job, examples, places, layout, processes)
    metrics = response_metrics(rows)
    if metrics:
        metrics = {**_settings(job), "dialogues": len(rows), **metrics, **knowledge_scores(examples, answers)}
    if processes.is_main:
        _write(job, output_rows(examples, places, answers, rows), metrics)
    return metrics


def _examples(job: GenerateResponses) -> Sequence[DialogueExample]:
    if job.input is None:
        return spoken_dialogue(job.turns, job.document, job.segmenter)
    return job.source(job.input).read().examples


def _answers(
    job: GenerateResponses,
    examples: Sequence[DialogueExample],
    places: Sequence[Sequence[Knowledge]],
    layout: ResponseInput,
    processes: Processes,
) -> list[EvaluatedResponse]:
    """One response a dialogue, in order, in every process; the processes share the work."""
    try:
        texts = [layout.text(example, known) for example, known in zip(examples, places, strict=True)]
    except DataError as error:
        raise error.at(file=job.input) from None
    references = [(squeeze(e.response or ""),) if has_response(e) else () for e in examples]
    generator = open_generator(job.checkpoint, processes)
    prompts = encode_prompts(
        [(example.id, text) for example, text in zip(examples, texts, strict=True)],
        generator.tokenizer,
        job.max_prompt_tokens,
        job.prompt_too_long,
        [{"references": known} for known in references],
    )
    answering = Answering(
        job.decoding.build(), job.max_new_tokens, job.batch_size, job.seed, progress=job.input is not None
    )
    answered, groups = respond(generator, prompts, processes, answering)
    rows = [
        EvaluatedResponse(prompt, answer.text, answer.tokens, answer.finished)
        for prompt, (answer,) in zip(answered, groups, strict=True)
    ]
    return processes.gather_objects(with_rouge_lsum(rows, job.segmenter))


def _settings(job: GenerateResponses) -> dict[str, Any]:
    """What the metrics were measured with."""
    settings = {key: getattr(job, key) for key in ("checkpoint", "input", "knowledge", "dialki", "max_turns")}
    if job.decoding != DecodingConfig():
        settings |= {**asdict(job.decoding), "seed": job.seed}
    return settings


def _write(job: GenerateResponses, rows: Iterator[dict[str, Any]], metrics: dict[str, Any]) -> None:
    with writable(job.output) as stream:
        for row in rows:
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")
    if job.output == STANDARD_OUTPUT or not metrics:
        return
    path = Path(job.output)
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
    answers: Sequence[Found] | None,
    rows: Sequence[EvaluatedResponse],
) -> Iterator[dict[str, Any]]:
    """The lines of `GenerateResponses.output`."""
    for i, (example, row) in enumerate(zip(examples, rows, strict=True)):
        shown = [_place(example, place) for place in places[i]]
        if answers is not None:
            shown = [{key: value for key, value in answers[i].to_json(example).items() if key != "id"}]
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
