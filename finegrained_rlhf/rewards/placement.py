"""Placing segment scores on tokens: each value goes to the token that ends its segment.

Eq. 6.1 of the thesis: r_t = Σ_k Σ_j 1[t = T_j^k] w_k R_k(x, y, j) − β·KL_t; this module is the double sum.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from finegrained_rlhf.core.errors import AlignmentError
from finegrained_rlhf.core.records import Rollout, SegmentScores
from finegrained_rlhf.text.alignment import segment_end_tokens

EMPTY = (0, 0)
"""The segment of a response without a word, where its emptiness is paid."""


def segment_tokens(scores: SegmentScores, rollout: Rollout) -> list[tuple[int, ...]]:
    """The response token that carries each segment's value.

    It is the token in which the segment's last character lies; a whole response's is its last real token, which is the
    end of sequence where there is one.

    Returns:
        R tuples of token indices, one a segment; none is padding.

    Raises:
        AlignmentError: a segment does not end inside its response, or the numbers of responses differ.
    """
    if len(scores.values) != len(rollout.texts):
        raise AlignmentError(f"scores of {len(scores.values)} responses for a rollout of {len(rollout.texts)}")
    found = []
    for row, (spans, length) in enumerate(zip(scores.spans, rollout.lengths().tolist(), strict=True)):
        if scores.whole_response:
            ends = tuple(length - 1 for _ in spans)
        else:
            ends = _ends(rollout.token_ends[row], spans, length)
        outside = [end for end in ends if not 0 <= end < length]
        if outside:
            raise AlignmentError(f"response {row}: a segment ends at token {outside[0]} of {length}")
        found.append(ends)
    return found


def _ends(token_ends: Sequence[int], spans: Sequence[tuple[int, int]], length: int) -> tuple[int, ...]:
    """The tokens that end the segments; the segment 0:0, which stands for an empty response, ends at the last one."""
    if tuple(spans) == (EMPTY,):
        return (length - 1,)
    return tuple(segment_end_tokens(token_ends, spans))


def place_values(values: Sequence[Sequence[float]], tokens: Sequence[tuple[int, ...]], rollout: Rollout) -> Tensor:
    """Token rewards of one component: each value is added at its token.

    Args:
        values: of each segment of the R responses.
        tokens: that carry them (`segment_tokens`).
        rollout: the responses.

    Returns:
        fp32 [R, T] on the rollout's device, 0 where no segment ends.
    """
    placed = torch.zeros(rollout.response_ids.shape, dtype=torch.float32)
    for row, (ends, found) in enumerate(zip(tokens, values, strict=True)):
        for end, value in zip(ends, found, strict=True):
            placed[row, end] += value
    return placed.to(rollout.response_ids.device)
