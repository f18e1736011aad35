"""The responses of a training step as rows of a file: enough to colour them, and to weigh their rewards anew later."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.core.records import ComponentTrace, Experience
from finegrained_rlhf.rl.kl import log_ratio_kl
from finegrained_rlhf.runtime.directory.samples import IMPORTANCE, SampleRecord, SampleSegment, SampleTokens
from finegrained_rlhf.runtime.processes import Processes

_DIGITS = 6


@dataclass(frozen=True)
class KeptSamples:
    """Which responses of a run are written down with their rewards.

    Attributes:
        every: training steps from one file to the next.
        rows: at most so many responses of a step.
        of_validation: so many greedy responses of every validation.
    """

    every: int = 10
    rows: int = 64
    of_validation: int = 16

    def __post_init__(self) -> None:
        if self.every < 1 or self.rows < 0 or self.of_validation < 0:
            raise ConfigError(f"kept samples: need every >= 1, rows >= 0 and of_validation >= 0, got {self}")


def write_step_samples(path: Path, experience: Experience, rows: int, processes: Processes) -> None:
    """Write at most `rows` responses of a step, equally many of each process; every process must call this."""
    share = -(-rows // processes.count)
    gathered = processes.gather_objects(sample_rows(experience)[:share])
    if processes.is_main:
        write_jsonl(path, gathered[:rows])


def sample_rows(experience: Experience) -> list[dict[str, Any]]:
    """The lines of the file, one a response; the numbers of tokens are rounded to six digits."""
    return [sample.row() for sample in kept_samples(experience)]


def kept_samples(experience: Experience) -> list[SampleRecord]:
    """The responses of a step with their segments and the numbers of their tokens."""
    rollout = experience.rollout
    kl = log_ratio_kl(rollout.logprobs, experience.reference_logprobs, rollout.response_mask)
    tensors = {"kl": kl, "value": experience.values, "reward": experience.rewards}
    if experience.shares or experience.values is not None:
        tensors["advantage"] = experience.advantages
    if experience.importance is not None:
        tensors[IMPORTANCE] = experience.importance.weights
    numbers = {name: _rounded(tensor) for name, tensor in tensors.items() if tensor is not None}
    shares = {name: _rounded(tensor) for name, tensor in experience.shares.items()}
    indices, lengths = rollout.sample_index.tolist(), rollout.lengths().tolist()
    return [
        SampleRecord(
            id=prompt.id,
            prompt=prompt.text,
            sample=indices[row],
            text=rollout.texts[row],
            segments=[
                segment
                for name, component in experience.trace.components.items()
                for segment in _segments(name, component, row)
            ],
            unscored=[
                name for name, component in experience.trace.components.items() if row in component.scores.unscored
            ],
            tokens=SampleTokens(
                list(rollout.token_ends[row]),
                {name: table[row][: lengths[row]] for name, table in numbers.items()},
                {name: table[row][: lengths[row]] for name, table in shares.items()},
            ),
        )
        for row, prompt in enumerate(rollout.row_prompts())
    ]


def _rounded(tensor: Tensor) -> list[list[float]]:
    return [[round(value, _DIGITS) for value in row] for row in tensor.float().tolist()]


def _segments(name: str, component: ComponentTrace, row: int) -> list[SampleSegment]:
    scores, weight = component.scores, component.weight_of(row)
    parts = (scores.spans[row], component.tokens[row], scores.values[row], component.normalised_values[row])
    return [
        SampleSegment(name, start, end, raw, weight * normalised, token, normalised)
        for (start, end), token, raw, normalised in zip(*parts, strict=True)
    ]
