"""Jobs that let a policy answer prompts: what `finegrained generate`, `finegrained sample-outputs` and
`finegrained evaluate` build and run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import (
    DataName,
    InputFile,
    ModelName,
    OutputFile,
    Seed,
    TokenizerName,
    above,
    at_least,
    harmless,
)
from finegrained_rlhf.core.records import Decoding
from finegrained_rlhf.inference.config import DecodingConfig, ResponseMonitor, sampling
from finegrained_rlhf.inference.generator import Answering
from finegrained_rlhf.models.weights.files import check_language_model
from finegrained_rlhf.rewards.config import RewardConfig
from finegrained_rlhf.rollout.mixers.protocol import LogitsMixer, check_mixer
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.text.chat import PromptConfig
from finegrained_rlhf.text.plain_text import TooLong
from finegrained_rlhf.text.segmentation import DEFAULT_SEGMENTER

if TYPE_CHECKING:
    from finegrained_rlhf.inference.evaluation import Evaluation


@dataclass(frozen=True, kw_only=True)
class AnswersPrompts(Settings):
    """What the jobs that let a policy answer prompts have in common.

    Attributes:
        max_new_tokens: longest response in tokens, end of sequence included.
        batch_size: prompts decoded at once in a process, each with all its samples.
        seed: of the sampling.
        max_prompt_tokens: longest prompt in tokens.
        prompt_too_long: `truncate` (counted, with a warning) or `refuse`.
        prompt: chat template and system message.
        processes: precision and CPU threads.
    """

    max_new_tokens: int = 200
    batch_size: Annotated[int, at_least(1), harmless] = 16
    seed: Seed = 0
    max_prompt_tokens: int = 1024
    prompt_too_long: TooLong = "truncate"
    prompt: PromptConfig = PromptConfig()
    processes: ProcessConfig = field(default_factory=ProcessConfig)

    def answering(self, decoding: Decoding) -> Answering:
        """How the prompts are answered, with this decoding."""
        return Answering(decoding, self.max_new_tokens, self.batch_size, self.seed)


def questions_path(output: str | Path) -> Path:
    """Where the measurements of each question lie, beside the metrics of all."""
    return Path(output).with_suffix(".questions.jsonl")


def outputs_path(output: str | Path) -> Path:
    """Where the answers lie that were measured, beside their metrics."""
    return Path(output).with_suffix(".outputs.jsonl")


@dataclass(frozen=True)
class Generate(AnswersPrompts):
    """Answer prompts and stream the answers out as JSON lines. Further fields: see `AnswersPrompts`.

    Attributes:
        checkpoint: run directory, checkpoint, model directory or Hub name.
        input: prompt file, data set of the Hub (`org/name:split`), or `-` for standard input, one prompt a line.
        output: JSON lines `{id, prompt, response}`, written batch by batch under a temporary name and renamed when all
            is done; `-` for standard output. With sampling each line also holds `sample`; with `best_of` also the
            `total` reward of the response, the `totals` of all samples, and the response's `segments` with their
            component rewards.
        decoding: greedy by default; with `best_of` then as in training.
        best_of: of so many samples a prompt, write the one whose reward is highest (`inference.best_of`); 1 writes all.
        reward: what `best_of` chooses by.
        mixer: changes the policy's logits (`rollout.mixers`); None leaves them.
    """

    checkpoint: ModelName
    input: DataName
    output: OutputFile
    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    best_of: int = 1
    reward: RewardConfig | None = None
    mixer: LogitsMixer | None = None

    input_checks: ClassVar[Mapping[str, Any]] = {"checkpoint": check_language_model}

    def __post_init__(self) -> None:
        check_mixer(self.mixer)
        sampling(self.decoding, self.best_of)

    def run(self) -> None:
        """Generate.

        Raises:
            ModelError: no readable model.
            DataError: no readable prompt, or none that the reward models can judge; nothing is written then.
            ConfigError: no reward to choose by, one that cannot be added up, or started in several processes.
        """
        from finegrained_rlhf.inference.generate import generate

        generate(self)


@dataclass(frozen=True)
class SampleOutputs(AnswersPrompts):
    """Sample several outputs for each prompt of a file; runs in one process or several.

    Further fields: see `AnswersPrompts`.

    Attributes:
        checkpoint: run directory, checkpoint, model directory or Hub name.
        data: prompt file, or data set of the Hub (`org/name:split`).
        output: JSON lines of outputs to write (`feedback.outputs`).
        samples: outputs a prompt.
        temperature: divides the logits; above 0.
        top_k: 0 keeps all tokens.
        top_p: 1.0 keeps all tokens.
        mixer: changes the policy's logits (`rollout.mixers`); None leaves them.
        limit: use at most so many prompts, from the beginning of the file; None uses all.
    """

    every_process: ClassVar[bool] = True

    checkpoint: ModelName
    data: DataName
    output: OutputFile
    samples: int = 4
    temperature: Annotated[float, above(0)] = 0.7
    top_k: int = 20
    top_p: float = 1.0
    mixer: LogitsMixer | None = None
    limit: Annotated[int | None, at_least(1)] = None

    input_checks: ClassVar[Mapping[str, Any]] = {"checkpoint": check_language_model}

    def __post_init__(self) -> None:
        check_mixer(self.mixer)
        self._decoding()

    def _decoding(self) -> Decoding:
        return DecodingConfig(self.samples, self.temperature, self.top_k, self.top_p).build()

    def run(self) -> None:
        """Sample and write.

        Raises:
            ModelError: no readable model.
            DataError: the prompt file is missing or broken.
        """
        from finegrained_rlhf.inference.generate import sample_outputs

        sample_outputs(self)


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
        oracle: measures the answers beside the reward: the truth, where the task knows it, or what needs no judge
            (`oracle=judge_free`, `metrics.grounding`); None measures nothing.
        best_of: of so many samples a prompt, measure the one whose reward is highest; 1 chooses nothing.
        decoding: greedy by default, with `best_of` then as in training; one answer a prompt is measured, so `n` is 1.
        limit: use at most so many prompts, from the beginning of the file; None uses all.
        segmenter: spaCy pipeline that cuts sentences for RougeLSum (`rules` needs no model).
    """

    every_process: ClassVar[bool] = True

    data: DataName
    output: OutputFile
    checkpoint: ModelName | None = None
    outputs: InputFile | None = None
    tokenizer: TokenizerName | None = None
    reward: RewardConfig | None = None
    oracle: ResponseMonitor | None = None
    best_of: int = 1
    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    limit: Annotated[int | None, at_least(1)] = None
    segmenter: str = DEFAULT_SEGMENTER

    input_checks: ClassVar[Mapping[str, Any]] = {"checkpoint": check_language_model}

    def __post_init__(self) -> None:
        if (self.checkpoint is None) == (self.outputs is None):
            raise ConfigError("name what to evaluate: checkpoint=RUN or outputs=FILE, one of them")
        if self.oracle is not None and not hasattr(self.oracle, "counts"):
            raise ConfigError(f"oracle: {type(self.oracle).__name__} has no counts()")
        if self.tokenizer is not None and self.outputs is None:
            raise ConfigError("tokenizer is for outputs=FILE; a policy counts with its own")
        if self.outputs is not None and (self.best_of, self.decoding) != (1, DecodingConfig()):
            raise ConfigError("best_of and decoding are for checkpoint=RUN; the answers in a file are drawn already")
        if self.decoding.n != 1:
            raise ConfigError(f"one answer a prompt is measured: leave decoding.n at 1, got {self.decoding.n}")
        sampling(self.decoding, self.best_of)
        read = {Path(source).resolve() for source in (self.data, self.outputs) if source is not None}
        for beside in (questions_path(self.output), *([] if self.outputs else [outputs_path(self.output)])):
            if beside.resolve() in read:
                raise ConfigError(f"output: {self.output} would be written with {beside}, which is read; name another")

    def run(self) -> Evaluation:
        """Evaluate; the main process writes and prints.

        Raises:
            ModelError: no readable model.
            DataError: data or outputs are broken or do not belong together; nothing is written then.
            ConfigError: no reward to choose by, or one that cannot be added up.
        """
        from finegrained_rlhf.inference.evaluate import evaluate

        return evaluate(self)
