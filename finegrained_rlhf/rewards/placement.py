"""Placing segment scores on tokens: each value goes to the token that ends its segment.

Eq. 6.1 of the thesis: r_t = Σ_k Σ_j 1[t = T_j^k] w_k R_k(x, y, j) − β·KL_t; this module is the double sum. Knows no
scorer, so that rewards can be made from kept scores, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from finegrained_rlhf.core.errors import AlignmentError
from finegrained_rlhf.core.records import ComponentTrace, Rollout, SegmentScores
from finegrained_rlhf.text.alignment import segment_end_tokens

if TYPE_CHECKING:
    from torch import Tensor

EMPTY = (0, 0)
"""The segment of a response without a word, where its emptiness is paid."""


def segment_tokens(scores: SegmentScores, rollout: Rollout) -> list[tuple[int, ...]]:
    """The response token that carries each segment's value.

    It is the token in which the segment's last character lies; a whole response's is its last real token, which is the
    end of sequence where there is one. Where every turn was read as a response, it is the last token of its turn.

    Returns:
        R tuples of token indices, one a segment; none is padding.

    Raises:
        AlignmentError: a segment does not end inside its response, or the numbers of responses differ.
    """
    if len(scores.values) != len(rollout.texts):
        raise AlignmentError(f"scores of {len(scores.values)} responses for a rollout of {len(rollout.texts)}")
    tokens = []
    lengths, turn_ends = rollout.lengths().tolist(), rollout.turn_ends()
    for row, (spans, length) in enumerate(zip(scores.spans, lengths, strict=True)):
        if scores.whole_response:
            own = turn_ends[row]
            ends = own if len(spans) == len(own) else own[-1:] * len(spans)
        else:
            ends = _ends(rollout.token_ends[row], spans, length)
        outside = [end for end in ends if not 0 <= end < length]
        if outside:
            raise AlignmentError(f"response {row}: a segment ends at token {outside[0]} of {length}")
        tokens.append(ends)
    return tokens


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
    import torch

    placed = torch.zeros(rollout.response_ids.shape, dtype=torch.float32)
    for row, (ends, row_values) in enumerate(zip(tokens, values, strict=True)):
        for end, value in zip(ends, row_values, strict=True):
            placed[row, end] += value
    return placed.to(rollout.response_ids.device)


def component_trace(
    scores: SegmentScores,
    rollout: Rollout,
    used: Sequence[tuple[float, ...]],
    *,
    weight: float,
    tokens: Sequence[tuple[int, ...]] | None = None,
    gate: Sequence[bool] | None = None,
    corrections: Sequence[tuple[tuple[int, float], ...]] | None = None,
) -> ComponentTrace:
    """One component's share in the reward of R responses.

    Args:
        scores: what it says of them.
        rollout: the responses.
        used: what the weight multiplies, of each segment: values after normalisation and aggregation.
        weight: of the component.
        tokens: R tuples, the token that carries each segment; None: the one that ends it.
        gate: R flags, whether the component counts in a response; None: it does.
        corrections: R tuples of tokens and what is paid there in place of the segments' values, gates included.

    Raises:
        AlignmentError: see `segment_tokens`.
    """
    import torch

    ends = segment_tokens(scores, rollout)
    tokens = ends if tokens is None else tokens
    raw = place_values(scores.values, ends, rollout)
    if corrections is not None:
        places = [tuple(token for token, _ in row) for row in corrections]
        normalised = place_values([[paid for _, paid in row] for row in corrections], places, rollout)
    else:
        normalised = raw if used is scores.values and tokens is ends else place_values(used, tokens, rollout)
    weighted = weight * normalised
    if gate is not None and corrections is None:
        is_open = torch.tensor(gate, dtype=torch.bool, device=weighted.device)
        weighted = torch.where(is_open[:, None], weighted, 0.0)
    return ComponentTrace(scores, weight, raw, normalised, weighted, used, tokens, gate, corrections)


def total_reward(components: Mapping[str, ComponentTrace], rollout: Rollout) -> Tensor:
    """fp32 [R, T]: the sum of the weighted components, in their order."""
    import torch

    total = torch.zeros(rollout.response_ids.shape, dtype=torch.float32, device=rollout.response_ids.device)
    for component in components.values():
        total = total + component.weighted
    return total
