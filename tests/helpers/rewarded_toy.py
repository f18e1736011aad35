"""Responses of a few tokens with rewards that are written down, from which estimators make advantages."""

from __future__ import annotations

import torch
from rl_toy import prompts
from torch import Tensor

from finegrained_rlhf.core.records import ComponentTrace, RewardTrace, Rollout, Sample, SegmentScores

MASK = torch.tensor([[1, 1, 1], [1, 1, 0]])


def identity(tensor: Tensor) -> Tensor:
    return tensor


def rollout(mask: Tensor, logprobs: Tensor | None = None, groups: list[int] | None = None) -> Rollout:
    """Responses of one group, or of several."""
    index = torch.tensor(groups or [0] * len(mask))
    zeros = torch.zeros_like(index)
    ids = 5 * mask
    logprobs = torch.zeros(mask.shape) if logprobs is None else logprobs
    texts, ends = [""] * len(mask), [()] * len(mask)
    return Rollout(
        prompts(count=int(index.max()) + 1),
        ids[:, :1],
        ids[:, :1],
        index,
        zeros,
        zeros,
        (Sample(2),),
        ids,
        mask,
        logprobs,
        texts,
        ends,
    )


def component(weight: float, segments: list[dict[int, float]], mask: Tensor = MASK) -> ComponentTrace:
    """Segments of each response by the token that carries them."""
    raw = torch.zeros(mask.shape)
    for row, by_token in enumerate(segments):
        for token, value in by_token.items():
            raw[row, token] = value
    values = [tuple(row.values()) for row in segments]
    spans = [tuple((t, t + 1) for t in row) for row in segments]
    return ComponentTrace(
        SegmentScores(spans, values), weight, raw, raw, weight * raw, values, [tuple(row) for row in segments]
    )


def trace(**components: ComponentTrace) -> RewardTrace:
    total = torch.stack([c.weighted for c in components.values()]).sum(dim=0)
    return RewardTrace(components, total)
