"""Writing what a policy answers: the jobs behind `finegrained generate` and `finegrained sample-outputs`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.records import Decoding, Greedy, Prompt
from finegrained_rlhf.feedback.outputs import OutputRecord, write_outputs
from finegrained_rlhf.inference.best_of import BestOf
from finegrained_rlhf.inference.config import check_reward, sampling
from finegrained_rlhf.inference.generator import Answering, PolicyGenerator, Response, respond
from finegrained_rlhf.inference.inputs import prompts_for, read_inputs
from finegrained_rlhf.inference.jobs import Generate, SampleOutputs
from finegrained_rlhf.models.config import PolicyConfig
from finegrained_rlhf.rewards.composition import RewardComposer
from finegrained_rlhf.rollout.mixers.protocol import LogitsMixer
from finegrained_rlhf.rollout.select import make_engine
from finegrained_rlhf.runtime.console import STANDARD_OUTPUT, ProgressBar, writable
from finegrained_rlhf.runtime.processes import Processes

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


def sample_records(
    generator: PolicyGenerator, prompts: Sequence[Prompt], processes: Processes, answering: Answering
) -> list[OutputRecord]:
    """The outputs for all prompts, in every process; the processes share the work."""
    share, groups = respond(generator, prompts, processes, answering)
    records = [
        output_record(prompt, [response.text for response in group])
        for prompt, group in zip(share, groups, strict=True)
    ]
    return processes.gather_objects(records)


def output_record(prompt: Prompt, outputs: Iterable[str]) -> OutputRecord:
    """The record of `outputs` for a prompt that was read from a prompt file."""
    known = prompt.metadata
    question = known.get("question") or prompt.text
    passages, references = tuple(known.get("passages", ())), tuple(known.get("references", ()))
    return OutputRecord(prompt.id, question, passages, references, prompt.text, tuple(outputs))


def generate(job: Generate) -> None:
    """Stream answers to the inputs as they come, in one process."""
    check_reward(job.reward, needed=job.best_of > 1)
    processes = Processes(job.processes)
    if processes.count > 1:
        raise ConfigError(
            "finegrained generate streams from one process; finegrained sample-outputs shares work between several"
        )
    items = read_inputs(job.input)
    chooser = None
    if job.best_of > 1 and job.reward is not None:
        chooser = BestOf(RewardComposer(job.reward), processes)
    generator = open_generator(job.checkpoint, processes, job.mixer)
    if chooser is not None:
        chooser.composer.setup(processes.device)
    prompts = prompts_for(generator.policy, items, job.max_prompt_tokens, job.prompt_too_long, job.prompt)
    if chooser is not None:
        chooser.composer.check_prompts(prompts)
    decoding = sampling(job.decoding, job.best_of)
    batches = job.answering(decoding).stream(generator, prompts)
    try:
        with writable(job.output) as stream, ProgressBar("generating", len(items), "prompts") as bar:
            for part, batch in zip(_cut(prompts, job.batch_size), batches, strict=True):
                for row in _rows(part, batch, decoding) if chooser is None else _best_rows(part, batch, chooser):
                    stream.write(json.dumps(row, ensure_ascii=False) + "\n")
                stream.flush()
                bar.update(len(batch))
    except BrokenPipeError:  # whoever read standard output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    if job.output != STANDARD_OUTPUT:
        print(f"{len(items)} prompts answered -> {job.output}", file=sys.stderr)


def sample_outputs(job: SampleOutputs) -> None:
    """Sample outputs of all prompts, shared among the processes, and write them as one file."""
    processes = Processes(job.processes)
    generator = open_generator(job.checkpoint, processes, job.mixer)
    prompts = prompts_for(generator.policy, job.data, job.max_prompt_tokens, job.prompt_too_long, job.prompt)
    prompts = prompts[: job.limit]
    records = sample_records(generator, prompts, processes, job.answering(job._decoding()))
    if processes.is_main:
        write_outputs(job.output, records)
        empty = sum(not output.strip() for record in records for output in record.outputs)
        note = f", {empty} of them empty" if empty else ""
        print(f"{len(records)} prompts, {len(records) * job.samples} outputs{note} -> {job.output}")
