"""An evaluation as a configuration: what `scripts/evaluate.py` builds and runs, and the files it reads and writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from finegrained_rlhf.core.errors import ConfigError, DataError, ModelError
from finegrained_rlhf.core.files import write_json, write_jsonl
from finegrained_rlhf.core.hub.names import DataPath, ModelPath
from finegrained_rlhf.core.hub.snapshots import place_of_model
from finegrained_rlhf.core.records import Greedy, Prompt
from finegrained_rlhf.feedback.outputs import read_outputs, write_outputs
from finegrained_rlhf.feedback.prompt_files import read_prompt_file
from finegrained_rlhf.inference.best_of import BestOf, check_reward, sampling
from finegrained_rlhf.inference.evaluation import (
    EvaluatedResponse,
    Evaluation,
    error_free_flags,
    evaluate_policy,
    evaluate_responses,
)
from finegrained_rlhf.inference.generate import AnswersPrompts, open_generator, output_record
from finegrained_rlhf.inference.generator import DecodingConfig
from finegrained_rlhf.inference.inputs.prompts import prompts_for
from finegrained_rlhf.inference.monitor import ResponseMonitor
from finegrained_rlhf.models.loading import load_tokenizer
from finegrained_rlhf.models.weights.files import check_language_model
from finegrained_rlhf.rewards.checks import error_free_from
from finegrained_rlhf.rewards.composition import RewardComposer
from finegrained_rlhf.rewards.config import RewardConfig
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.loop.start import exported_step
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.text.plain_text import plain_token_ids
from finegrained_rlhf.text.segmentation import DEFAULT_SEGMENTER


@dataclass(frozen=True)
class Evaluate(AnswersPrompts):
    """Measure a policy's answers, greedy ones or the best of n samples, or answers from a file.

    Further fields: see `AnswersPrompts`.

    Attributes:
        data: prompt file with references, or data set of the Hub (`org/name:split`).
        output: JSON file for the metrics, with those of each question beside it (`questions_path`); a run also gets
            those of its greedy answers in `metrics.json` (`beside_earlier`).
        checkpoint: run directory, checkpoint, model directory or Hub name to evaluate; set this or `outputs`.
        outputs: JSON lines of outputs to evaluate; the first output of each record counts.
        tokenizer: directory or Hub name of the tokenizer that counts the tokens of `outputs`; None counts only words.
        reward: reward models whose opinion is measured, and by which `best_of` chooses; None measures none.
        oracle: the truth, where the task knows it; None elsewhere.
        best_of: of so many samples a prompt, measure the one whose reward is highest; 1 chooses nothing.
        decoding: greedy by default, with `best_of` then as in training; one answer a prompt is measured, so `n` is 1.
        limit: use at most so many prompts, from the beginning of the file; None uses all.
        segmenter: spaCy pipeline that cuts sentences for RougeLSum (`rules` needs no model).
    """

    every_process: ClassVar[bool] = True

    data: DataPath
    output: str
    checkpoint: ModelPath | None = None
    outputs: str | None = None
    tokenizer: ModelPath | None = None
    reward: RewardConfig | None = None
    oracle: ResponseMonitor | None = None
    best_of: int = 1
    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    limit: int | None = None
    segmenter: str = DEFAULT_SEGMENTER

    input_checks: ClassVar[Mapping[str, Any]] = {"checkpoint": check_language_model}

    def __post_init__(self) -> None:
        if (self.checkpoint is None) == (self.outputs is None):
            raise ConfigError("name what to evaluate: checkpoint=RUN or outputs=FILE, one of them")
        if self.limit is not None and self.limit < 1:
            raise ConfigError(f"limit must be null or at least 1, got {self.limit}")
        if self.oracle is not None and not hasattr(self.oracle, "counts"):
            raise ConfigError(f"oracle: {type(self.oracle).__name__} has no counts()")
        if self.tokenizer is not None and self.outputs is None:
            raise ConfigError("tokenizer is for outputs=FILE; a policy counts with its own")
        if self.outputs is not None and (self.best_of, self.decoding) != (1, DecodingConfig()):
            raise ConfigError("best_of and decoding are for checkpoint=RUN; the answers in a file are drawn already")
        if self.decoding.n != 1:
            raise ConfigError(f"one answer a prompt is measured: leave decoding.n at 1, got {self.decoding.n}")
        sampling(self.decoding, self.best_of)

    def run(self) -> Evaluation:
        """Evaluate; the main process writes and prints.

        Raises:
            ModelError: no readable model.
            DataError: data or outputs are broken or do not belong together; nothing is written then.
            ConfigError: no reward to choose by, or one that cannot be added up.
        """
        check_reward(self.reward, needed=self.best_of > 1)
        processes = Processes(self.processes)
        composer = None if self.reward is None else RewardComposer(self.reward, processes.sum_)
        result = self._outputs(composer, processes) if self.outputs else self._policy(composer, processes)
        if processes.is_main:
            self._write(result, composer)
        return result

    def _policy(self, composer: RewardComposer | None, processes: Processes) -> Evaluation:
        assert self.checkpoint is not None
        chooser = None if self.best_of == 1 or composer is None else BestOf(composer, processes)
        generator = open_generator(self.checkpoint, processes)
        prompts = prompts_for(generator.policy, self.data, self.max_prompt_tokens, self.prompt_too_long, self.prompt)
        if composer is not None:
            composer.setup(processes.device)
            composer.check_prompts(prompts[: self.limit])
        return evaluate_policy(
            generator,
            prompts[: self.limit],
            processes,
            self.answering(sampling(self.decoding, self.best_of)),
            chooser=chooser,
            composer=composer,
            oracle=self.oracle,
            segmenter=self.segmenter,
        )

    def _outputs(self, composer: RewardComposer | None, processes: Processes) -> Evaluation:
        assert self.outputs is not None
        prompts = unencoded_prompts(self.data)
        responses = first_outputs(prompts, self.outputs, self.limit)
        if composer is not None:
            composer.setup(processes.device)
            composer.check_prompts(prompts[: self.limit])
        return evaluate_responses(
            prompts[: self.limit],
            responses,
            processes,
            composer=composer,
            oracle=self.oracle,
            tokens=None if self.tokenizer is None else count_tokens(responses, self.tokenizer),
            segmenter=self.segmenter,
        )

    def _write(self, result: Evaluation, composer: RewardComposer | None) -> None:
        outputs = self.outputs
        if outputs is None:
            path = Path(self.output)
            outputs = str(path.with_name(f"{path.stem}.outputs.jsonl"))
            write_outputs(outputs, [output_record(row.prompt, [row.response]) for row in result.responses])
        write_jsonl(questions_path(self.output), question_rows(result.responses, composer))
        report: dict[str, Any] = {
            "checkpoint": self.checkpoint,
            "data": self.data,
            "outputs": outputs,
            "examples": len(result.responses),
            **self._sampling(),
            **result.metrics,
        }
        if (
            self.checkpoint is not None
            and (step := exported_step(RunDirectory(self.checkpoint).final("policy"))) is not None
        ):
            report["step"] = step
        write_json(self.output, report)
        if self.checkpoint is not None and RunDirectory(self.checkpoint).is_run() and not self._sampling():
            run = RunDirectory(self.checkpoint)
            run.write_results(beside_earlier(run.read_results(), report), keep=False)
        width = max(map(len, report))
        for name, value in report.items():
            print(f"{name:{width}}  {value:.4f}" if isinstance(value, float) else f"{name:{width}}  {value}")

    def _sampling(self) -> dict[str, Any]:
        """What the report says of answers that are not greedy; nothing of greedy ones."""
        drawn = sampling(self.decoding, self.best_of)
        if self.outputs is not None or isinstance(drawn, Greedy):
            return {}
        return {"best_of": self.best_of, **{k: v for k, v in asdict(drawn).items() if k != "n"}, "seed": self.seed}


def questions_path(output: str | Path) -> Path:
    """Where the measurements of each question lie, beside the metrics of all."""
    return Path(output).with_suffix(".questions.jsonl")


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
        for name, found in row.components.items():
            if not found.scored:
                continue
            rewards[name] = {"sum": sum(found.values), "segments": len(found.values)}
            if composer is not None and not found.whole_response:
                flags = error_free_flags(found, error_free_from(composer.config.components[name]))
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
    found = {record.id: record.outputs for record in read_outputs(path)}
    strange = sorted(set(found) - {prompt.id for prompt in prompts})
    prompts = prompts[:limit]
    missing = [prompt.id for prompt in prompts if prompt.id not in found]
    if missing:
        raise DataError(
            f"no output for {len(missing)} of the {len(prompts)} examples of the data, the first is {missing[0]!r}; "
            "was it made from the same file?",
            file=path,
            field="id",
        )
    if strange:
        raise DataError("no example of the data has this id", file=path, record=strange[0], field="id")
    return [found[prompt.id] for prompt in prompts]


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
