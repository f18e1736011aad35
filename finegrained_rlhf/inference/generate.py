"""Writing what a policy answers: the jobs behind `scripts/generate.py` and `scripts/sample_outputs.py`.

Knows policies as text generators and the files they are asked to fill. Knows no metric, and rewards only as what
`inference.best_of` chooses by.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.hub.names import DataPath, ModelPath
from finegrained_rlhf.core.records import Decoding, Greedy, Prompt
from finegrained_rlhf.feedback.outputs import OutputRecord, write_outputs
from finegrained_rlhf.inference.best_of import BestOf, check_reward, sampling
from finegrained_rlhf.inference.generator import DecodingConfig, PolicyGenerator, Response
from finegrained_rlhf.inference.inputs.prompt_inputs import read_inputs
from finegrained_rlhf.inference.inputs.prompts import TooLong, prompts_for
from finegrained_rlhf.models.config import PolicyConfig
from finegrained_rlhf.models.weights.files import check_language_model
from finegrained_rlhf.rewards.composition import RewardComposer
from finegrained_rlhf.rewards.config import RewardConfig
from finegrained_rlhf.rollout.mixers.protocol import LogitsMixer, check_mixer
from finegrained_rlhf.rollout.select import make_engine
from finegrained_rlhf.runtime.console import STANDARD_OUTPUT, progress_bar, writable
from finegrained_rlhf.runtime.processes import ProcessConfig, Processes
from finegrained_rlhf.text.chat import PromptConfig

_Row = dict[str, Any]


def open_generator(checkpoint: str, processes: Processes, mixer: LogitsMixer | None = None) -> PolicyGenerator:
    """The policy of a run or directory on this process's device.

    Args:
        checkpoint: run directory, checkpoint, model directory or Hub name.
        processes: give device and precision.
        mixer: changes the policy's logits; None leaves them.

    Raises:
        ModelError: there is no model, or it cannot be read, or one of the mixer's.
    """
    policy = PolicyConfig(checkpoint).load(processes.device)
    return PolicyGenerator(policy, make_engine(policy, mixer=mixer), processes)


@dataclass(frozen=True)
class Answering:
    """How prompts are answered.

    Attributes:
        decoding: greedy by default.
        max_new_tokens: longest response in tokens, end of sequence included.
        batch_size: prompts decoded at once in a process.
        seed: of the sampling.
        progress: show a progress bar in the main process.
    """

    decoding: Decoding = Greedy()
    max_new_tokens: int = 200
    batch_size: int = 16
    seed: int = 0
    progress: bool = True

    def stream(self, generator: PolicyGenerator, prompts: Sequence[Prompt]) -> Iterator[list[list[Response]]]:
        """The responses of each prompt of a batch, batch by batch as they are done."""
        return generator.stream(
            prompts, self.decoding, max_new_tokens=self.max_new_tokens, batch_size=self.batch_size, seed=self.seed
        )


@dataclass(frozen=True, kw_only=True)
class AnswersPrompts:
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
    batch_size: int = 16
    seed: int = 0
    max_prompt_tokens: int = 1024
    prompt_too_long: TooLong = "truncate"
    prompt: PromptConfig = PromptConfig()
    processes: ProcessConfig = field(default_factory=ProcessConfig)

    def answering(self, decoding: Decoding) -> Answering:
        """How the prompts are answered, with this decoding."""
        return Answering(decoding, self.max_new_tokens, self.batch_size, self.seed)


def respond(
    generator: PolicyGenerator, prompts: Sequence[Prompt], processes: Processes, answering: Answering
) -> tuple[list[Prompt], list[list[Response]]]:
    """This process's share of the prompts, and the responses to each of them.

    The samples depend on (seed, prompt id, sample) alone, not on the number of processes.
    """
    mine = [prompts[i] for i in processes.share(len(prompts))]
    groups: list[list[Response]] = []
    with progress_bar("generating", len(mine), "prompt", answering.progress and processes.is_main) as bar:
        for batch in answering.stream(generator, mine):
            groups += batch
            bar.update(len(batch))
    return mine, groups


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

    checkpoint: ModelPath
    input: DataPath
    output: str
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
        check_reward(self.reward, needed=self.best_of > 1)
        processes = Processes(self.processes)
        if processes.count > 1:
            raise ConfigError("generate.py streams from one process; sample_outputs.py shares work between several")
        items = read_inputs(self.input)
        chooser = None
        if self.best_of > 1 and self.reward is not None:
            chooser = BestOf(RewardComposer(self.reward), processes)
        generator = open_generator(self.checkpoint, processes, self.mixer)
        if chooser is not None:
            chooser.composer.setup(processes.device)
        prompts = prompts_for(generator.policy, items, self.max_prompt_tokens, self.prompt_too_long, self.prompt)
        if chooser is not None:
            chooser.composer.check_prompts(prompts)
        decoding = sampling(self.decoding, self.best_of)
        batches = self.answering(decoding).stream(generator, prompts)
        try:
            with writable(self.output) as stream, progress_bar("generating", len(items), "prompt") as bar:
                for part, batch in zip(_cut(prompts, self.batch_size), batches, strict=True):
                    for row in _rows(part, batch, decoding) if chooser is None else _best_rows(part, batch, chooser):
                        stream.write(json.dumps(row, ensure_ascii=False) + "\n")
                    stream.flush()
                    bar.update(len(batch))
        except BrokenPipeError:  # whoever read standard output has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return
        if self.output != STANDARD_OUTPUT:
            print(f"{len(items)} prompts answered -> {self.output}", file=sys.stderr)


def _rows(prompts: Sequence[Prompt], groups: Sequence[Sequence[Response]], decoding: Decoding) -> Iterator[_Row]:
    for prompt, group in zip(prompts, groups, strict=True):
        for sample, response in enumerate(group):
            row: _Row = {"id": prompt.id, "prompt": prompt.text, "response": response.text}
            yield row if isinstance(decoding, Greedy) else {**row, "sample": sample}


def _best_rows(prompts: Sequence[Prompt], groups: Sequence[Sequence[Response]], chooser: BestOf) -> Iterator[_Row]:
    for prompt, choice in zip(prompts, chooser.choose(prompts, groups), strict=True):
        yield {
            "id": prompt.id,
            "prompt": prompt.text,
            "response": choice.response.text,
            "sample": choice.sample,
            "total": _rounded(choice.total),
            "totals": [_rounded(total) for total in choice.totals],
            "segments": [{k: _rounded(v) for k, v in asdict(segment).items()} for segment in choice.segments],
        }


def _rounded(value: Any) -> Any:
    """Floats to six digits: the batch in which a text is scored changes the seventh."""
    return round(value, 6) if isinstance(value, float) else value


def _cut(prompts: Sequence[Prompt], size: int) -> Iterator[Sequence[Prompt]]:
    return (prompts[start : start + size] for start in range(0, len(prompts), size))


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

    checkpoint: ModelPath
    data: DataPath
    output: str
    samples: int = 4
    temperature: float = 0.7
    top_k: int = 20
    top_p: float = 1.0
    mixer: LogitsMixer | None = None
    limit: int | None = None

    input_checks: ClassVar[Mapping[str, Any]] = {"checkpoint": check_language_model}

    def __post_init__(self) -> None:
        check_mixer(self.mixer)
        if self.limit is not None and self.limit < 1:
            raise ConfigError(f"limit must be null or at least 1, got {self.limit}")
        if self.temperature <= 0:
            raise ConfigError(f"temperature must be above 0, got {self.temperature}; generate.py decodes greedily")
        self._decoding()

    def _decoding(self) -> Decoding:
        return DecodingConfig(self.samples, self.temperature, self.top_k, self.top_p).build()

    def run(self) -> None:
        """Sample and write.

        Raises:
            ModelError: no readable model.
            DataError: the prompt file is missing or broken.
        """
        processes = Processes(self.processes)
        generator = open_generator(self.checkpoint, processes, self.mixer)
        prompts = prompts_for(generator.policy, self.data, self.max_prompt_tokens, self.prompt_too_long, self.prompt)
        prompts = prompts[: self.limit]
        records = sample_records(generator, prompts, processes, self.answering(self._decoding()))
        if processes.is_main:
            write_outputs(self.output, records)
            empty = sum(not output.strip() for record in records for output in record.outputs)
            note = f", {empty} of them empty" if empty else ""
            print(f"{len(records)} prompts, {len(records) * self.samples} outputs{note} -> {self.output}")


def sample_records(
    generator: PolicyGenerator, prompts: Sequence[Prompt], processes: Processes, answering: Answering
) -> list[OutputRecord]:
    """The outputs for all prompts, in every process; the processes share the work."""
    mine, groups = respond(generator, prompts, processes, answering)
    records = [
        output_record(prompt, [response.text for response in group]) for prompt, group in zip(mine, groups, strict=True)
    ]
    return processes.gather_objects(records)


def output_record(prompt: Prompt, outputs: Iterable[str]) -> OutputRecord:
    """The record of `outputs` for a prompt that was read from a prompt file."""
    known = prompt.metadata
    question = known.get("question") or prompt.text
    passages, references = tuple(known.get("passages", ())), tuple(known.get("references", ()))
    return OutputRecord(prompt.id, question, passages, references, prompt.text, tuple(outputs))
