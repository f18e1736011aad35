"""How toxic, fluent and varied continuations are: drawn or read, scored, judged, written."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import write_json, write_jsonl
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.detoxification.evaluation.job import EvaluateDetox
from finegrained_rlhf.detoxification.evaluation.measures import MeasuredPrompt, MeasuredText, summarise_continuations
from finegrained_rlhf.detoxification.evaluation.perplexity import JudgedText, JudgeModel
from finegrained_rlhf.inference.evaluate import outputs_of, unencoded_prompts
from finegrained_rlhf.inference.generate import open_generator
from finegrained_rlhf.inference.generator import Answering, Response, respond
from finegrained_rlhf.inference.inputs.prompts import prompts_for
from finegrained_rlhf.inference.monitor import oracle_rates
from finegrained_rlhf.rewards.texts.protocol import TextScorer
from finegrained_rlhf.rewards.texts.scoring import known_scores
from finegrained_rlhf.rollout.mixers.protocol import LogitsMixer
from finegrained_rlhf.runtime.processes import Processes

logger = logging.getLogger(__name__)


def evaluate(job: EvaluateDetox) -> dict[str, float]:
    """Draw or read the continuations of a job, measure and write them. The metrics, in every process."""
    processes = Processes(job.processes)
    for scorer in job.scorers.values():
        scorer.setup(processes.device)
    judge = None if job.judge_model is None else JudgeModel(job.judge_model, processes.device)
    prompts, groups = _known_continuations(job, processes) if job.outputs else _drawn(job, processes)
    if job.chosen_by is not None:
        groups = _chosen(job, groups, job.scorers[job.chosen_by])
    measured = processes.gather_objects(_measure(job, prompts, groups, judge, processes))
    metrics = summarise_continuations(measured)
    if job.oracle is not None:
        metrics |= oracle_rates(processes.gather_objects([_oracle(job, prompts, groups)]))
    if processes.is_main:
        _write(job, measured, metrics)
    return metrics


def _drawn(job: EvaluateDetox, processes: Processes) -> tuple[list[Prompt], list[list[Response]]]:
    assert job.checkpoint is not None
    generator = open_generator(job.checkpoint, processes, job.mixer)
    prompts = prompts_for(generator.policy, job.data, job.max_prompt_tokens, job.prompt_too_long, job.prompt)[
        : job.limit
    ]
    return respond(generator, prompts, processes, Answering(job.decoding(), job.longest, job.batch_size, job.seed))


def _known_continuations(job: EvaluateDetox, processes: Processes) -> tuple[list[Prompt], list[list[Response]]]:
    assert job.outputs is not None
    prompts = unencoded_prompts(job.data)
    known = dict(zip((p.id for p in prompts), outputs_of(prompts, job.outputs, job.limit), strict=False))
    prompts = prompts[: job.limit]
    count = len(known[prompts[0].id])
    for prompt in prompts:
        if len(known[prompt.id]) != count:
            problem = f"expected {count} outputs, as of the first prompt, got {len(known[prompt.id])}"
            raise DataError(problem, file=job.outputs, record=prompt.id, field="outputs")
    share = [prompts[i] for i in processes.share(len(prompts))]
    return share, [[Response(text, -1, False, _blank_before(text)) for text in known[prompt.id]] for prompt in share]


def _chosen(job: EvaluateDetox, groups: Sequence[Sequence[Response]], scorer: TextScorer) -> list[list[Response]]:
    """Of every `best_of` draws in a row the one with the lowest score; of equal ones the first."""
    scores = _scores(scorer, [response.text for group in groups for response in group])
    kept = []
    for group in groups:
        blocks = [group[i : i + job.best_of] for i in range(0, len(group), job.best_of)]
        kept.append([min(block, key=lambda one: _or_worst(scores[one.text])) for block in blocks])
    return kept


def _measure(
    job: EvaluateDetox,
    prompts: Sequence[Prompt],
    groups: Sequence[Sequence[Response]],
    judge: JudgeModel | None,
    processes: Processes,
) -> list[MeasuredPrompt]:
    rows = [(prompt.text, response) for prompt, group in zip(prompts, groups, strict=True) for response in group]
    texts = [response.text for _, response in rows]
    scores = {name: _scores(scorer, texts) for name, scorer in job.scorers.items()}
    judged: Sequence[JudgedText | None] = [None] * len(rows)
    if judge is not None:
        with processes.autocast():
            judged = judge.judge([prompt for prompt, _ in rows], [response.continuation for _, response in rows])
    measured = iter(
        MeasuredText(
            response.text,
            {name: by_text[response.text] for name, by_text in scores.items()},
            one,
            None if response.tokens < 0 else response.tokens,
            None if response.tokens < 0 else response.finished,
        )
        for (_, response), one in zip(rows, judged, strict=True)
    )
    return [
        MeasuredPrompt(prompt.id, prompt.text, [next(measured) for _ in group])
        for prompt, group in zip(prompts, groups, strict=True)
    ]


def _oracle(
    job: EvaluateDetox, prompts: Sequence[Prompt], groups: Sequence[Sequence[Response]]
) -> Mapping[str, tuple[float, float]]:
    assert job.oracle is not None
    rows = [(prompt, response.text) for prompt, group in zip(prompts, groups, strict=True) for response in group]
    return job.oracle.counts([prompt for prompt, _ in rows], [text for _, text in rows])


def _write(job: EvaluateDetox, measured: Sequence[MeasuredPrompt], metrics: Mapping[str, float]) -> None:
    output = Path(job.output)
    drawn: dict[str, Any] = {
        "checkpoint": job.checkpoint,
        "outputs": job.outputs,
        "data": job.data,
        "scorers": {name: scorer.identity for name, scorer in job.scorers.items()},
        "judge_model": job.judge_model,
    }
    if job.outputs is None:
        drawn |= {
            "protocol": job.protocol,
            "decoding": asdict(job.decoding()),
            "max_new_tokens": job.longest,
            "best_of": job.best_of,
            "seed": job.seed,
            "mixer": None if job.mixer is None else _settings(job.mixer),
        }
    write_jsonl(output.with_suffix(".samples.jsonl"), (row for prompt in measured for row in _rows(prompt)))
    write_json(output, {"evaluated": drawn, "metrics": dict(metrics)})
    print("\n".join(f"{name:<32}{value:>12.4f}" for name, value in metrics.items()))
    print(f"-> {output}")


def _blank_before(text: str) -> str:
    """What stands between a prompt and a text of a file, of which nobody knows what was lost: a blank before a word."""
    return " " if text[:1].isalnum() else ""


def _or_worst(score: float | None) -> float:
    return 2.0 if score is None else score


def _scores(scorer: TextScorer, texts: Sequence[str]) -> dict[str, float | None]:
    """The score of each text, every text asked about once; that of no text is 0, and of one that is refused None."""
    by_text: dict[str, float | None] = {text: None if text.strip() else 0.0 for text in texts}
    scores, reason = known_scores(scorer, [text for text in by_text if text.strip()])
    by_text |= scores
    if reason is not None:
        missing = sum(score is None for score in by_text.values())
        logger.warning("%d texts have no score by %s; one: %s", missing, scorer.identity, reason)
    return by_text


def _settings(mixer: LogitsMixer) -> dict[str, Any]:
    public = {name: value for name, value in vars(mixer).items() if not name.startswith("_")}
    return {"kind": type(mixer).__name__, **public}


def _rows(prompt: MeasuredPrompt) -> list[dict[str, Any]]:
    return [
        {
            "id": prompt.id,
            "sample": number,
            "prompt": prompt.prompt,
            "text": text.text,
            "scores": dict(text.scores),
            "perplexity": None if text.judged is None else text.judged.perplexity,
            "tokens": text.tokens,
            "finished": text.finished,
        }
        for number, text in enumerate(prompt.texts)
    ]
