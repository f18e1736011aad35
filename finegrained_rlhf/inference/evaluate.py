"""What `finegrained evaluate` runs, and the files that it reads and writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.errors import DataError, ModelError
from finegrained_rlhf.core.files import write_json, write_jsonl
from finegrained_rlhf.core.hub import place_of_model
from finegrained_rlhf.core.records import Greedy, Prompt
from finegrained_rlhf.feedback.outputs import read_outputs, write_outputs
from finegrained_rlhf.feedback.prompt_files import read_prompt_file
from finegrained_rlhf.inference.best_of import BestOf
from finegrained_rlhf.inference.config import check_monitor, check_reward, sampling
from finegrained_rlhf.inference.evaluation import (
    EvaluatedResponse,
    Evaluation,
    error_free_flags,
    evaluate_policy,
    evaluate_responses,
)
from finegrained_rlhf.inference.generate import open_generator, output_record
from finegrained_rlhf.inference.inputs import prompts_for
from finegrained_rlhf.inference.jobs import Evaluate, outputs_path, questions_path
from finegrained_rlhf.models.loading import load_tokenizer, model_directory
from finegrained_rlhf.rewards.checks import error_free_from
from finegrained_rlhf.rewards.composition import RewardComposer
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.loop.checkpoints import exported_step
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.text.plain_text import plain_token_ids


def question_rows(responses: Sequence[EvaluatedResponse], composer: RewardComposer | None) -> list[dict[str, Any]]:
    """What was measured of each answer, one a question, so that errors over questions can be had of every mean.

    Args:
        responses: the answers.
        composer: whose components' opinions they hold; None where there are none.

    Returns:
        Rows with `id`, `words`, and where they are known `tokens`, `finished`, `rouge_lsum`; `rewards`: by component
        the `sum` of its values, the number of `segments` and, of one that judges segments, how many are `error_free`
        (a component without a score of the answer is left out);
        `oracle`: by rate (found, of how many).
    """
    rows = []
    for row in responses:
        known = {"tokens": row.tokens, "finished": row.finished, "rouge_lsum": row.rouge_lsum}
        rewards = {}
        for name, component in row.components.items():
            if not component.scored:
                continue
            rewards[name] = {"sum": sum(component.values), "segments": len(component.values)}
            if composer is not None and not component.whole_response:
                flags = error_free_flags(component, error_free_from(composer.config.components[name]))
                rewards[name] |= {"segments": len(flags), "error_free": sum(flags)}
        rows.append(
            {"id": row.prompt.id, "words": len(row.response.split())}
            | {name: value for name, value in known.items() if value is not None}
            | {"rewards": rewards, "oracle": {name: list(pair) for name, pair in row.counts.items()}}
        )
    return rows


_SAME = ("data", "examples", "step")
_EARLIER = "earlier"


def beside_earlier(before: Mapping[str, Any], report: Mapping[str, Any]) -> dict[str, Any]:
    """What `metrics.json` of a run says after another evaluation; nothing that was measured is lost.

    Of the same answers (step, data, number of examples) the new numbers stand beside the earlier ones: an evaluation by
    other reward models (`reward/…`) leaves the oracle's rates. Numbers of other answers move to the list `earlier`.

    Args:
        before: what it said; may be empty.
        report: the new evaluation, with `step`, that of the policy.
    """
    measured = {key: value for key, value in before.items() if key not in ("training", _EARLIER)}
    earlier = list(before.get(_EARLIER, []))
    if all(measured.get(key) == report.get(key) for key in _SAME):
        replaced = ("reward/",) if any(key.startswith("reward/") for key in report) else ()
        kept = {key: value for key, value in measured.items() if not key.startswith(replaced or "\0")}
    else:
        kept = {}
        earlier += [measured] if measured else []
    return {**kept, **report, **({_EARLIER: earlier} if earlier else {})}


def unencoded_prompts(data: str | Path) -> list[Prompt]:
    """The prompts of a file with what scorers need, without token ids: nothing will be generated.

    Raises:
        DataError: the file is missing or broken.
    """
    return [Prompt(item.id, item.text, (), item.metadata) for item in read_prompt_file(data)]


def first_outputs(prompts: Sequence[Prompt], path: str | Path, limit: int | None = None) -> list[str]:
    """The first output for each of the first `limit` prompts; see `outputs_of`."""
    return [outputs[0] for outputs in outputs_of(prompts, path, limit)]


def outputs_of(prompts: Sequence[Prompt], path: str | Path, limit: int | None = None) -> list[tuple[str, ...]]:
    """All outputs for each of the first `limit` prompts from a file of outputs, matched by id.

    Raises:
        DataError: the file is broken, a prompt has no output, or an output belongs to no prompt.
    """
    outputs = {record.id: record.outputs for record in read_outputs(path)}
    strange = sorted(set(outputs) - {prompt.id for prompt in prompts})
    prompts = prompts[:limit]
    missing = [prompt.id for prompt in prompts if prompt.id not in outputs]
    if missing:
        raise DataError(
            f"no output for {len(missing)} of the {len(prompts)} examples of the data, the first is {missing[0]!r}; "
            "was it made from the same file?",
            file=path,
            field="id",
        )
    if strange:
        raise DataError("no example of the data has this id", file=path, record=strange[0], field="id")
    return [outputs[prompt.id] for prompt in prompts]


def count_tokens(texts: Sequence[str], directory: str | Path) -> list[int]:
    """Tokens of each text by the tokenizer in `directory`, no special tokens.

    Raises:
        ModelError: no readable tokenizer.
    """
    place = place_of_model(directory)
    for candidate in (place, place / "policy"):
        if any((candidate / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
            tokenizer = load_tokenizer(candidate)
            return [len(ids) for ids in plain_token_ids(tokenizer, texts)]
    raise ModelError(f"{directory}: no tokenizer here (expected tokenizer.json)")


def evaluate(job: Evaluate) -> Evaluation:
    """Measure a policy, or a file of outputs; the main process writes and prints the metrics."""
    check_reward(job.reward, needed=job.best_of > 1)
    processes = Processes(job.processes)
    composer = None if job.reward is None else RewardComposer(job.reward, processes.sum_)
    result = _outputs(job, composer, processes) if job.outputs else _policy(job, composer, processes)
    if processes.is_main:
        _write(job, result, composer)
    return result


def _policy(job: Evaluate, composer: RewardComposer | None, processes: Processes) -> Evaluation:
    assert job.checkpoint is not None
    chooser = None if job.best_of == 1 or composer is None else BestOf(composer, processes)
    generator = open_generator(job.checkpoint, processes)
    prompts = prompts_for(generator.policy, job.data, job.max_prompt_tokens, job.prompt_too_long, job.prompt)
    check_monitor(job.oracle, prompts[: job.limit])
    if composer is not None:
        composer.setup(processes.device)
        composer.check_prompts(prompts[: job.limit])
    return evaluate_policy(
        generator,
        prompts[: job.limit],
        processes,
        job.answering(sampling(job.decoding, job.best_of)),
        chooser=chooser,
        composer=composer,
        oracle=job.oracle,
        segmenter=job.segmenter,
    )


def _outputs(job: Evaluate, composer: RewardComposer | None, processes: Processes) -> Evaluation:
    assert job.outputs is not None
    prompts = unencoded_prompts(job.data)
    responses = first_outputs(prompts, job.outputs, job.limit)
    check_monitor(job.oracle, prompts[: job.limit])
    if composer is not None:
        composer.setup(processes.device)
        composer.check_prompts(prompts[: job.limit])
    return evaluate_responses(
        prompts[: job.limit],
        responses,
        processes,
        composer=composer,
        oracle=job.oracle,
        tokens=None if job.tokenizer is None else count_tokens(responses, job.tokenizer),
        segmenter=job.segmenter,
    )


def _write(job: Evaluate, result: Evaluation, composer: RewardComposer | None) -> None:
    outputs = job.outputs
    if outputs is None:
        outputs = str(outputs_path(job.output))
        write_outputs(outputs, [output_record(row.prompt, [row.response]) for row in result.responses])
    write_jsonl(questions_path(job.output), question_rows(result.responses, composer))
    report: dict[str, Any] = {
        "checkpoint": job.checkpoint,
        "data": job.data,
        "outputs": outputs,
        "examples": len(result.responses),
        **_sampling(job),
        **result.metrics,
    }
    if job.checkpoint is not None and (step := exported_step(model_directory(job.checkpoint))) is not None:
        report["step"] = step
    write_json(job.output, report)
    if job.checkpoint is not None and RunDirectory(job.checkpoint).is_run() and not _sampling(job):
        run = RunDirectory(job.checkpoint)
        run.write_results(beside_earlier(run.read_results(), report), keep=False)
    width = max(map(len, report))
    for name, value in report.items():
        print(f"{name:{width}}  {value:.4f}" if isinstance(value, float) else f"{name:{width}}  {value}")


def _sampling(job: Evaluate) -> dict[str, Any]:
    """What the report says of answers that are not greedy; nothing of greedy ones."""
    drawn = sampling(job.decoding, job.best_of)
    if job.outputs is not None or isinstance(drawn, Greedy):
        return {}
    return {"best_of": job.best_of, **{k: v for k, v in asdict(drawn).items() if k != "n"}, "seed": job.seed}
