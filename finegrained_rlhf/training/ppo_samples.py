"""The responses of a PPO step as rows of a file: enough to colour them, and to weigh their rewards anew later.

Knows experiences. Knows no file name and no reward model.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from finegrained_rlhf.core.records import ComponentTrace, Experience
from finegrained_rlhf.rl.kl import log_ratio_kl

_DIGITS = 6


def sample_rows(experience: Experience) -> list[dict[str, Any]]:
    """One JSON object a response.

    - `id`, `prompt`, `sample` (its number among the prompt's), `response`;
    - `segments`: `component`, `start` and `end` in characters of the response, `token` that carries the value, and the
      value `raw` (the scorer's), `normalised` (after normaliser and aggregation) and `weighted`;
    - `tokens`: lists over the response's tokens: `ends` (characters), `kl` (log π − log π_ref, without β), `value`,
      `reward` (as trained: KL included, whitened where the configuration says so) and `advantage`.
    """
    rollout = experience.rollout
    kl = log_ratio_kl(rollout.logprobs, experience.reference_logprobs, rollout.response_mask)
    tensors = {"kl": kl, "value": experience.values, "reward": experience.rewards, "advantage": experience.advantages}
    numbers = {name: _rounded(tensor) for name, tensor in tensors.items()}
    samples, lengths = rollout.sample_index.tolist(), rollout.lengths().tolist()
    rows = []
    for row, prompt in enumerate(rollout.row_prompts()):
        real = slice(0, lengths[row])
        rows.append(
            {
                "id": prompt.id,
                "prompt": prompt.text,
                "sample": samples[row],
                "response": rollout.texts[row],
                "segments": [
                    segment
                    for name, component in experience.trace.components.items()
                    for segment in _segments(name, component, row)
                ],
                "tokens": {
                    "ends": list(rollout.token_ends[row]),
                    **{name: table[row][real] for name, table in numbers.items()},
                },
            }
        )
    return rows


def _rounded(tensor: Tensor) -> list[list[float]]:
    return [[round(value, _DIGITS) for value in row] for row in tensor.float().tolist()]


def _segments(name: str, component: ComponentTrace, row: int) -> list[dict[str, Any]]:
    scores = component.scores
    parts = (scores.spans[row], component.tokens[row], scores.values[row], component.normalised_values[row])
    return [
        {
            "component": name,
            "start": start,
            "end": end,
            "token": token,
            "raw": raw,
            "normalised": normalised,
            "weighted": component.weight * normalised,
        }
        for (start, end), token, raw, normalised in zip(*parts, strict=True)
    ]
