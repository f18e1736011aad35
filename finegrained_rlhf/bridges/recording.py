"""The run of another trainer as a run directory of ours: configuration, metrics by step, responses with their trace.

`finegrained report` opens it, and so does everything else that reads samples. Only the main process records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
import yaml

from finegrained_rlhf.core.checks import is_number
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import write_json, write_jsonl, write_text
from finegrained_rlhf.core.records import Experience
from finegrained_rlhf.inference.measure import StepMetrics
from finegrained_rlhf.runtime.directory.provenance import provenance
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.runtime.sinks import JsonlSink
from finegrained_rlhf.training.ppo.metrics import KeptSamples, describe_responses, kept_samples, step_metrics

_THEIRS = ("kl", "beta", "lr")
"""Metrics of a step that only the trainer knows that updates."""


class Alone(Processes):
    """One process that already knows what all of them know, so that nothing is summed or gathered."""

    def __init__(self) -> None:
        self.rank, self.count, self.device = 0, 1, torch.device("cpu")


class RunRecorder:
    """Writes down a run of another trainer.

    Args:
        path: the directory of the run; the other trainer may have files of its own there.
        config: what the run is recorded by, in plain containers: `reward`, `algorithm`, `seed`, the trainer's settings.
        samples: which responses are kept.
        tokenizer: of the policy.
        eos_ids: the policy's ends of sequence.
    """

    def __init__(
        self, path: str, config: Mapping[str, Any], samples: KeptSamples, tokenizer: Any, eos_ids: Sequence[int]
    ) -> None:
        self.run, self._config, self._samples = RunDirectory(path), config, samples
        self._answering: Any = SimpleNamespace(tokenizer=tokenizer, eos_ids=tuple(eos_ids))
        self._sink, self._begun = JsonlSink(self.run), False
        self._row: tuple[int, dict[str, float]] | None = None
        self._measured, self._examples = StepMetrics(), 0

    def begin(self, done: int, processes: int) -> None:
        """Make the directory ready, once: what lies there behind `done` steps is forgotten.

        Args:
            done: training steps that the run has behind it.
            processes: that work on it together.

        Raises:
            ConfigError: the run is a new one, and the directory holds another.
        """
        if self._begun:
            return
        if not done and (self.run.metrics.exists() or self.run.eval.exists()):
            raise ConfigError(
                f"output_dir: {self.run.path} holds a run already; name another directory, or continue it with "
                "trainer.train(resume_from_checkpoint=True)"
            )
        self.run.create()
        write_text(self.run.config_path, yaml.safe_dump(dict(self._config), sort_keys=False, allow_unicode=True))
        self.run.rewind(done)
        write_json(self.run.provenance, {"starts": [provenance(processes)]})
        self._begun = True

    def add(self, step: int, experience: Experience) -> None:
        """Take in what was drawn for a training step, from 1; later responses of the same step replace it.

        Args:
            step: the first optimizer step that learns from it.
            experience: of all processes.
        """
        if self._row is not None and self._row[0] != step:
            self.flush()
        measured = step_metrics(experience, self._answering, StepMetrics(), Alone(), step=step, beta=0.0, lr=0.0)
        self._row = (step, {name: value for name, value in measured.items() if name not in _THEIRS})
        if step == 1 or step % self._samples.every == 0:
            self._keep(self.run.samples_path(step), experience, self._samples.rows)

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Put numbers of the other trainer beside those of the last step."""
        if self._row is not None:
            self._row[1].update({name: float(value) for name, value in metrics.items() if is_number(value)})

    def add_validation(self, step: int, experience: Experience) -> None:
        """Take in a batch of answers to validation prompts; the first batch's are kept."""
        if not self._examples:
            self._keep(self.run.validation_samples_path(step), experience, self._samples.of_validation)
        self._examples += len(experience.rollout.texts)
        describe_responses(experience.rollout, experience.trace, self._answering, self._measured)

    def end_validation(self, step: int) -> None:
        """Write what the batches since the last call measured: `score` is their mean total reward."""
        if not self._examples:
            return
        means = self._measured.reduce(Alone())
        self._sink.log_eval(step, {"score": means["reward/total"], "examples": self._examples, **means})
        self._measured, self._examples = StepMetrics(), 0

    def flush(self) -> None:
        """Write the line of the last step, if it is not there yet."""
        if self._row is not None:
            self._sink.log(*self._row)
            self._row = None

    def end(self, step: int, total_steps: int) -> None:
        """Write what is left, and how far the run came."""
        self.flush()
        ended = step >= total_steps
        state = {"status": "ended" if ended else "training", "step": step, "total_steps": total_steps}
        write_json(self.run.state, {**state, "best_step": None, "best_score": None, "stop_reason": None})

    def _keep(self, path: Any, experience: Experience, rows: int) -> None:
        """Responses with their trace; the KL, which is not known here, is left out."""
        kept = []
        for sample in kept_samples(experience)[:rows]:
            assert sample.tokens is not None
            numbers = {name: values for name, values in sample.tokens.numbers.items() if name != "kl"}
            kept.append(replace(sample, tokens=replace(sample.tokens, numbers=numbers)).row())
        write_jsonl(path, kept)
