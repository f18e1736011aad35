"""The sampling distribution: temperature, top-k and top-p over logits, and inverse-CDF sampling from uniform noise."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
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
    top_k = 0 < decoding.top_k < warped.shape[-1]
    if not top_k and decoding.top_p >= 1.0:
        return warped
    with torch.no_grad():
        cut = torch.zeros_like(warped, dtype=torch.bool)
        if top_k:
            threshold = torch.topk(warped, decoding.top_k, dim=-1).values[..., -1:]
            cut = warped < threshold
        if decoding.top_p < 1.0:
            cut = _beyond_nucleus(warped.masked_fill(cut, -torch.inf) if top_k else warped, decoding.top_p)
        if keep is not None:
            cut = cut.scatter(-1, keep.unsqueeze(-1), False)
    return warped.masked_fill(cut, -torch.inf)


# From so many tokens on, the CPU looks for the nucleus row by row instead of sorting all rows with their ids.
_SEARCHED = 4096


def _beyond_nucleus(warped: Tensor, top_p: float) -> Tensor:
    """What top-p cuts off, bool [..., V]: all tokens behind those, from the most likely on, that reach `top_p`.

    Of equal logits the lower id comes first. Probabilities are summed in fp64.
    """
    if warped.device.type == "cpu" and warped.shape[-1] > _SEARCHED:
        cut = np.ones(warped.shape, dtype=bool)
        for row, cut_row in zip(_rows(warped), cut.reshape(-1, warped.shape[-1]), strict=True):
            cut_row[_nucleus(row, top_p)[0]] = False
        return torch.from_numpy(cut)
    ordered, order = torch.sort(warped, dim=-1, descending=True, stable=True)
    probabilities = ordered.softmax(dim=-1, dtype=torch.float64)
    del ordered
    before = probabilities.cumsum(dim=-1).sub_(probabilities)
    return torch.zeros_like(warped, dtype=torch.bool).scatter(-1, order, before >= top_p)


def _rows(warped: Tensor) -> NDArray[np.float32]:
    """The rows [n, V] of logits [..., V] on the CPU."""
    rows: NDArray[np.float32] = warped.detach().reshape(-1, warped.shape[-1]).numpy()
    return rows


def _nucleus(row: NDArray[np.float32], top_p: float) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Ids of the tokens that top-p keeps, ascending, and their weights exp(logit − largest), for logits [V].

    A token less likely than (1 − top_p) / V is never kept: all such tokens together have less than 1 − top_p. So only
    the others (with a margin of two for rounding) are sorted, and without their ids.
    """
    shifted = row - row.max()
    exponentials = np.exp(shifted)
    total = exponentials.sum(dtype=np.float64)
    ids = np.flatnonzero(exponentials >= 0.5 * (1.0 - top_p) / row.size * total)
    total -= exponentials[ids].sum(dtype=np.float64)  # what is left is the tail, little enough for fp32
    weights: NDArray[np.float64] = torch.from_numpy(shifted[ids]).double().exp().numpy()
    if not ids.size:  # NaN: whoever reads the log-probability says so
        return np.arange(row.size), np.full(row.size, np.nan)
    ordered = np.sort(weights)[::-1]
    total += ordered.sum()
    count = 1 + int(np.searchsorted(ordered.cumsum()[:-1], top_p * total, side="left"))
    smallest = ordered[count - 1]
    kept = weights > smallest
    equal = np.flatnonzero(weights == smallest)
    kept[equal[: count - int(kept.sum())]] = True
    return ids[kept], weights[kept]


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


def support_of(warped: Tensor, tokens: Tensor, decoding: Sample) -> Tensor:
    """Which tokens `warp_logits` has left, so compact that it can be kept of every token of a rollout.

    Args:
        warped: float [..., V], −inf where cut off.
        tokens: int64 [...], those that were drawn; always among what is left.
        decoding: what cut; with top-k, of more than 44 that share the k-th largest logit some may go.

    Returns:
        With top-k int32 [..., K], ids, one of them several times where there are fewer; else uint8 [..., V / 8], bits.
    """
    if decoding.top_k:
        largest = torch.topk(warped, min(decoding.top_k + _TIES, warped.shape[-1]), dim=-1, sorted=False)
        own = tokens.unsqueeze(-1)
        return torch.cat([own, torch.where(largest.values == -torch.inf, own, largest.indices)], dim=-1).int()
    left = torch.nn.functional.pad((warped != -torch.inf).byte(), (0, -warped.shape[-1] % 8)).unflatten(-1, (-1, 8))
    return (left * _bits(warped.device)).sum(dim=-1, dtype=torch.uint8)


def within(logits: Tensor, decoding: Sample, support: Tensor) -> Tensor:
    """Tempered logits [..., V], fp32, −inf outside of a support [..., K] as `support_of` gives it."""
    if support.dtype == torch.uint8:
        inside = (support.unsqueeze(-1) & _bits(logits.device)).flatten(-2)[..., : logits.shape[-1]] != 0
    else:
        inside = torch.zeros_like(logits, dtype=torch.bool).scatter_(-1, support.long(), True)
    return (logits.float() / decoding.temperature).masked_fill(~inside, -torch.inf)


def _bits(device: torch.device) -> Tensor:
    return 2 ** torch.arange(8, dtype=torch.uint8, device=device)


def draw(logits: Tensor, decoding: Sample, uniform: Tensor) -> Tensor:
    """`sample_tokens(warp_logits(logits, decoding), uniform)`, over the candidates of top-k or top-p alone.

    Equal to it unless more than 44 tokens share the k-th largest logit.

    Args:
        logits: float [R, V].
        decoding: the sampling parameters.
        uniform: fp64 [R] in (0, 1).

    Returns:
        int64 [R].
    """
    if decoding.top_k == 0 and decoding.top_p < 1.0 and logits.device.type == "cpu" and logits.shape[-1] > _SEARCHED:
        rows = _rows(logits.float() / decoding.temperature)
        numbers = zip(rows, uniform.tolist(), strict=True)
        return torch.tensor([_draw_from_nucleus(row, decoding.top_p, number) for row, number in numbers])
    count = decoding.top_k + _TIES
    if decoding.top_k == 0 or count >= logits.shape[-1]:
        return sample_tokens(warp_logits(logits, decoding), uniform)
    ids = torch.topk(logits, count, dim=-1, sorted=False).indices.sort(dim=-1).values
    chosen = sample_tokens(warp_logits(logits.gather(-1, ids), decoding), uniform)
    return ids.gather(-1, chosen.unsqueeze(-1)).squeeze(-1)


def _draw_from_nucleus(row: NDArray[np.float32], top_p: float, uniform: float) -> int:
    """`sample_tokens` among the tokens that top-p keeps of logits [V]."""
    ids, weights = _nucleus(row, top_p)
    cumulative = weights.cumsum()
    place = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
    return int(ids[min(place, len(ids) - 1)])
