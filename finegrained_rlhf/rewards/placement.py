"""Placing segment scores on tokens: each value goes to the token that ends its segment.

Eq. 6.1 of the thesis: r_t = Σ_k Σ_j 1[t = T_j^k] w_k R_k(x, y, j) − β·KL_t; this module is the double sum.
"""

from __future__ import annotations

import torch
from torch import Tensor

from finegrained_rlhf.core.errors import AlignmentError
from finegrained_rlhf.core.records import Rollout, SegmentScores
from finegrained_rlhf.text.alignment import segment_end_tokens


def place_scores(scores: SegmentScores, rollout: Rollout) -> Tensor:
    """Token rewards of one component.

    A segment's value is added at the token in which its last character lies; a whole response's at its last real
    token, which is the end of sequence where there is one. A value is never put on padding.

    Args:
        scores: spans and values of the R responses.
        rollout: the responses with the character offset at which each token ends.

    Returns:
        fp32 [R, T] on the rollout's device, 0 where no segment ends.

    Raises:
        AlignmentError: a segment does not end inside its response, or the numbers of responses differ.
    """
    rows = len(rollout.texts)
    if len(scores.values) != rows:
        raise AlignmentError(f"scores of {len(scores.values)} responses for a rollout of {rows}")
    placed = torch.zeros(rollout.response_ids.shape, dtype=torch.float32)
    lengths = rollout.lengths().tolist()
    for row, (spans, values) in enumerate(zip(scores.spans, scores.values, strict=True)):
        if scores.whole_response:
            ends = tuple(lengths[row] - 1 for _ in spans)
        else:
            ends = segment_end_tokens(rollout.token_ends[row], spans)
        for end, value in zip(ends, values, strict=True):
            if not 0 <= end < lengths[row]:
                raise AlignmentError(f"response {row}: a segment ends at token {end} of {lengths[row]}")
            placed[row, end] += value
    return placed.to(rollout.response_ids.device)
