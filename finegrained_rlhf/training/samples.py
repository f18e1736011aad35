"""The responses of a PPO step as rows of a file: enough to colour them, and to weigh their rewards anew later.

Knows experiences. Knows no file name and no reward model.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from finegrained_rlhf.core.records import ComponentTrace, Experience
from finegrained_rlhf.rl.kl import log_ratio_kl
from finegrained_rlhf.runtime.directory.samples import SampleRecord, SampleSegment, SampleTokens

_DIGITS = 6


def sample_rows(experience: Experience) -> list[dict[str, Any]]:
    """The lines of the file (`runtime.samples`), one a response; the numbers of tokens are rounded to six digits."""
    return [sample.row() for sample in kept_samples(experience)]


def kept_samples(experience: Experience) -> list[SampleRecord]:
    """The responses of a step with their segments and the numbers of their tokens."""
    rollout = experience.rollout
    kl = log_ratio_kl(rollout.logprobs, experience.reference_logprobs, rollout.response_mask)
    tensors = {"kl": kl, "value": experience.values, "reward": experience.rewards, "advantage": experience.advantages}
    numbers = {name: _rounded(tensor) for name, tensor in tensors.items()}
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
            tokens=SampleTokens(
                list(rollout.token_ends[row]), {name: table[row][: lengths[row]] for name, table in numbers.items()}
            ),
        )
        for row, prompt in enumerate(rollout.row_prompts())
    ]


def _rounded(tensor: Tensor) -> list[list[float]]:
    return [[round(value, _DIGITS) for value in row] for row in tensor.float().tolist()]


def _segments(name: str, component: ComponentTrace, row: int) -> list[SampleSegment]:
    scores = component.scores
    parts = (scores.spans[row], component.tokens[row], scores.values[row], component.normalised_values[row])
    return [
        SampleSegment(name, start, end, raw, component.weight * normalised, token, normalised)
        for (start, end), token, raw, normalised in zip(*parts, strict=True)
    ]
