"""The sampling distribution: temperature, top-k and top-p over logits, and inverse-CDF sampling from uniform noise."""

from __future__ import annotations

import torch
from torch import Tensor

from finegrained_rlhf.core.records import Sample


def warp_logits(logits: Tensor, decoding: Sample, keep: Tensor | None = None) -> Tensor:
    """Temperature, then top-k, then top-p; what is cut off becomes −inf.

    Args:
        logits: float [..., V].
        decoding: the sampling parameters.
        keep: int64 [...], a token id that is never cut off (an already sampled token whose log-probability is asked
            under a policy that has moved since); None keeps nothing by force.

    Returns:
        fp32 [..., V].
    """
    warped = logits.float() / decoding.temperature
    cut = torch.zeros_like(warped, dtype=torch.bool)
    if 0 < decoding.top_k < warped.shape[-1]:
        threshold = torch.topk(warped, decoding.top_k, dim=-1).values[..., -1:]
        cut = warped < threshold
    if decoding.top_p < 1.0:
        ordered, order = torch.sort(warped.masked_fill(cut, -torch.inf), dim=-1, descending=True, stable=True)
        probabilities = ordered.softmax(dim=-1)
        before = probabilities.cumsum(dim=-1) - probabilities
        beyond = before >= decoding.top_p
        cut = cut | torch.zeros_like(cut).scatter(-1, order, beyond)
    if keep is not None:
        cut = cut.scatter(-1, keep.unsqueeze(-1), False)
    return warped.masked_fill(cut, -torch.inf)


def sample_tokens(warped: Tensor, uniform: Tensor) -> Tensor:
    """The token whose interval of the cumulative distribution, in order of token id, holds the uniform number.

    Order of id rather than of probability: two nearly equal probabilities may change places with the shape of the
    batch, ids do not.

    Args:
        warped: fp32 [R, V] logits, −inf where cut off.
        uniform: fp64 [R] in (0, 1).

    Returns:
        int64 [R].
    """
    cumulative = warped.double().softmax(dim=-1).cumsum(dim=-1)
    targets = (uniform.to(cumulative) * cumulative[:, -1]).unsqueeze(-1)
    tokens = torch.searchsorted(cumulative, targets, right=True).squeeze(-1)
    return tokens.clamp(max=warped.shape[-1] - 1)


# More candidates than top-k asks for, so that logits equal to the k-th (common in bf16) stay in, as in `warp_logits`.
_TIES = 44


def draw(logits: Tensor, decoding: Sample, uniform: Tensor) -> Tensor:
    """`sample_tokens(warp_logits(logits, decoding), uniform)`, over the top-k candidates alone where there are few.

    Equal to it unless more than 44 tokens share the k-th largest logit.

    Args:
        logits: float [R, V].
        decoding: the sampling parameters.
        uniform: fp64 [R] in (0, 1).

    Returns:
        int64 [R].
    """
    count = decoding.top_k + _TIES
    if decoding.top_k == 0 or count >= logits.shape[-1]:
        return sample_tokens(warp_logits(logits, decoding), uniform)
    ids = torch.topk(logits, count, dim=-1, sorted=False).indices.sort(dim=-1).values
    chosen = sample_tokens(warp_logits(logits.gather(-1, ids), decoding), uniform)
    return ids.gather(-1, chosen.unsqueeze(-1)).squeeze(-1)
