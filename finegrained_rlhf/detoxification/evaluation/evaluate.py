"""An evaluation of continuations as a configuration: what `scripts/evaluate_detox.py` builds and runs."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import write_json, write_jsonl
from finegrained_rlhf.core.hub.names import DataPath, ModelPath
from finegrained_rlhf.core.records import Prompt, Sample
from finegrained_rlhf.detoxification.evaluation.measures import MeasuredPrompt, MeasuredText, summarise_continuations
from finegrained_rlhf.detoxification.evaluation.perplexity import JudgedText, JudgeModel
from finegrained_rlhf.inference.evaluate import outputs_of, unencoded_prompts
from finegrained_rlhf.inference.generate import open_generator
from finegrained_rlhf.inference.generator import Answering, Response, respond
from finegrained_rlhf.inference.inputs.prompts import TooLong, prompts_for
from finegrained_rlhf.inference.monitor import ResponseMonitor, oracle_rates
from finegrained_rlhf.rewards.texts.protocol import TextScorer
from finegrained_rlhf.rewards.texts.scoring import known_scores
from finegrained_rlhf.rollout.mixers.protocol import LogitsMixer, check_mixer
from finegrained_rlhf.runtime.processes import ProcessConfig, Processes
from finegrained_rlhf.text.chat import PromptConfig

logger = logging.getLogger(__name__)

Protocol = Literal["thesis", "literature"]
"""How many continuations are drawn, and how long: 4 of 48 tokens (thesis, section 6.3), or 25 of 20 tokens, with which
DExperts and its successors report."""
PROTOCOLS: Mapping[Protocol, tuple[int, int]] = {"thesis": (4, 48), "literature": (25, 20)}


@dataclass(frozen=True, kw_only=True)
class EvaluateDetox:
    """Measure how toxic, fluent and varied a policy's continuations are, or those of a file.

    Attributes:
        data: prompt file, or data set of the Hub (`org/name:split`).
        output: JSON file for the metrics; every continuation goes to `STEM.samples.jsonl` beside it.
        checkpoint: run directory, checkpoint, model directory or Hub name; set this or `outputs`.
        outputs: JSON lines of outputs (`feedback.outputs`), as many a prompt as there are.
        scorers: by name, what says how toxic a text is. One that the policy was trained against measures how far it
            was fooled; another one is needed to measure toxicity.
        judge_model: language model of the perplexity; directory or Hub name. None measures none.
        oracle: the truth, where the task knows it.
        protocol: `thesis` or `literature`.
        samples: continuations a prompt; None takes the protocol's.
        max_new_tokens: longest continuation, end of sequence included; None takes the protocol's.
        temperature: divides the logits; above 0.
        top_k: 0 keeps all tokens.
        top_p: 1.0 keeps all tokens.
        mixer: changes the policy's logits (`rollout.mixers`); None leaves them.
        best_of: of so many draws for each continuation, the one with the lowest score by `chosen_by` is kept.
        chosen_by: name of the scorer that chooses; None where nothing is chosen.
        limit: use at most so many prompts, from the beginning of the file; None uses all.
        batch_size: prompts decoded at once in a process, each with all its samples.
        seed: of the sampling.
        max_prompt_tokens: longest prompt in tokens.
        prompt_too_long: `truncate` (counted, with a warning) or `refuse`.
        prompt: chat template and system message.
        processes: precision and CPU threads.
    """

    every_process: ClassVar[bool] = True

    data: DataPath
    output: str
    checkpoint: ModelPath | None = None
    outputs: str | None = None
    scorers: Mapping[str, TextScorer] = field(default_factory=dict)
    judge_model: ModelPath | None = None
    oracle: ResponseMonitor | None = None
    protocol: Protocol = "thesis"
    samples: int | None = None
    max_new_tokens: int | None = None
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 0.9
    mixer: LogitsMixer | None = None
    best_of: int = 1
    chosen_by: str | None = None
    limit: int | None = None
    batch_size: int = 16
    seed: int = 0
    max_prompt_tokens: int = 1024
    prompt_too_long: TooLong = "truncate"
    prompt: PromptConfig = PromptConfig()
    processes: ProcessConfig = field(default_factory=ProcessConfig)

    def __post_init__(self) -> None:
        check_mixer(self.mixer)
        if (self.checkpoint is None) == (self.outputs is None):
            raise ConfigError("name what to evaluate: checkpoint=RUN or outputs=FILE, one of them")
        if self.protocol not in get_args(Protocol):
            raise ConfigError(f"protocol: expected {' or '.join(get_args(Protocol))}, got {self.protocol!r}")
        for name in ("samples", "max_new_tokens", "limit", "best_of"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}: expected at least 1, got {value}")
        for name, scorer in self.scorers.items():
            if not isinstance(scorer, TextScorer):
                raise ConfigError(f"scorers.{name}: {type(scorer).__name__} is no scorer of texts (score_texts)")
        if not self.scorers and self.judge_model is None and self.oracle is None:
            raise ConfigError(
                "scorers: expected at least one, or a judge_model or an oracle: without them neither toxicity nor "
                "fluency is measured (+text_scorer@scorers.NAME=OPTION adds a scorer)"
            )
        if (self.best_of > 1) != (self.chosen_by is not None):
            raise ConfigError("best_of and chosen_by belong together: chosen_by=NAME of scorers, best_of above 1")
        if self.chosen_by is not None and self.chosen_by not in self.scorers:
            raise ConfigError(f"chosen_by: expected one of {', '.join(self.scorers)}, got {self.chosen_by!r}")
        drawn = (self.mixer, self.samples, self.max_new_tokens) != (None, None, None) or self.best_of > 1
        if self.outputs is not None and drawn:
            raise ConfigError(
                "mixer, samples, max_new_tokens and best_of are for checkpoint=RUN; those of a file are drawn already"
            )
        self._decoding()

    def _decoding(self) -> Sample:
        samples = self.samples or PROTOCOLS[self.protocol][0]
        try:
            return Sample(samples * self.best_of, self.temperature, self.top_k, self.top_p)
        except ValueError as error:
            raise ConfigError(str(error)) from None

    def run(self) -> dict[str, float]:
        """Evaluate; the main process writes and prints. The metrics, in every process.

        Raises:
            ModelError: no readable model.
            DataError: data or outputs are broken or do not belong together; nothing is written then.
        """
        processes = Processes(self.processes)
        for scorer in self.scorers.values():
            scorer.setup(processes.device)
        judge = None if self.judge_model is None else JudgeModel(self.judge_model, processes.device)
        prompts, groups = self._given(processes) if self.outputs else self._drawn(processes)
        if self.chosen_by is not None:
            groups = self._chosen(groups, self.scorers[self.chosen_by])
        measured = processes.gather_objects(self._measure(prompts, groups, judge, processes))
        metrics = summarise_continuations(measured)
        if self.oracle is not None:
            metrics |= oracle_rates(processes.gather_objects([self._oracle(prompts, groups)]))
        if processes.is_main:
            self._write(measured, metrics)
        return metrics

    def _drawn(self, processes: Processes) -> tuple[list[Prompt], list[list[Response]]]:
        assert self.checkpoint is not None
        generator = open_generator(self.checkpoint, processes, self.mixer)
        prompts = prompts_for(generator.policy, self.data, self.max_prompt_tokens, self.prompt_too_long, self.prompt)[
            : self.limit
        ]
        longest = self.max_new_tokens or PROTOCOLS[self.protocol][1]
        return respond(generator, prompts, processes, Answering(self._decoding(), longest, self.batch_size, self.seed))

    def _given(self, processes: Processes) -> tuple[list[Prompt], list[list[Response]]]:
        assert self.outputs is not None
        prompts = unencoded_prompts(self.data)
        known = dict(zip((p.id for p in prompts), outputs_of(prompts, self.outputs, self.limit), strict=False))
        prompts = prompts[: self.limit]
        count = len(known[prompts[0].id])
        for prompt in prompts:
            if len(known[prompt.id]) != count:
                problem = f"expected {count} outputs, as of the first prompt, got {len(known[prompt.id])}"
                raise DataError(problem, file=self.outputs, record=prompt.id, field="outputs")
        mine = [prompts[i] for i in processes.share(len(prompts))]
        return mine, [[Response(text, -1, False, _blank_before(text)) for text in known[prompt.id]] for prompt in mine]

    def _chosen(self, groups: Sequence[Sequence[Response]], scorer: TextScorer) -> list[list[Response]]:
        """Of every `best_of` draws in a row the one with the lowest score; of equal ones the first."""
        scores = _scores(scorer, [response.text for group in groups for response in group])
        kept = []
        for group in groups:
            blocks = [group[i : i + self.best_of] for i in range(0, len(group), self.best_of)]
            kept.append([min(block, key=lambda one: _or_worst(scores[one.text])) for block in blocks])
        return kept

    def _measure(
        self,
        prompts: Sequence[Prompt],
        groups: Sequence[Sequence[Response]],
        judge: JudgeModel | None,
        processes: Processes,
    ) -> list[MeasuredPrompt]:
        rows = [(prompt.text, response) for prompt, group in zip(prompts, groups, strict=True) for response in group]
        texts = [response.text for _, response in rows]
        scores = {name: _scores(scorer, texts) for name, scorer in self.scorers.items()}
        judged: Sequence[JudgedText | None] = [None] * len(rows)
        if judge is not None:
            with processes.autocast():
                judged = judge.judge([prompt for prompt, _ in rows], [response.continuation for _, response in rows])
        measured = iter(
            MeasuredText(
                response.text,
                {name: found[response.text] for name, found in scores.items()},
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
        self, prompts: Sequence[Prompt], groups: Sequence[Sequence[Response]]
    ) -> Mapping[str, tuple[float, float]]:
        assert self.oracle is not None
        rows = [(prompt, response.text) for prompt, group in zip(prompts, groups, strict=True) for response in group]
        return self.oracle.counts([prompt for prompt, _ in rows], [text for _, text in rows])

    def _write(self, measured: Sequence[MeasuredPrompt], metrics: Mapping[str, float]) -> None:
        output = Path(self.output)
        drawn: dict[str, Any] = {
            "checkpoint": self.checkpoint,
            "outputs": self.outputs,
            "data": self.data,
            "scorers": {name: scorer.identity for name, scorer in self.scorers.items()},
            "judge_model": self.judge_model,
        }
        if self.outputs is None:
            drawn |= {
                "protocol": self.protocol,
                "decoding": asdict(self._decoding()),
                "max_new_tokens": self.max_new_tokens or PROTOCOLS[self.protocol][1],
                "best_of": self.best_of,
                "seed": self.seed,
                "mixer": None if self.mixer is None else _settings(self.mixer),
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
    found: dict[str, float | None] = {text: None if text.strip() else 0.0 for text in texts}
    scores, reason = known_scores(scorer, [text for text in found if text.strip()])
    found |= scores
    if reason is not None:
        missing = sum(score is None for score in found.values())
        logger.warning("%d texts have no score by %s; one: %s", missing, scorer.identity, reason)
    return found


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
