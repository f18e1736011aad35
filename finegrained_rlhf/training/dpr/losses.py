"""The loss of dense passage retrieval over the passages of a batch, and the rank of each query's own passage."""

from __future__ import annotations

import torch
from torch import Tensor


def in_batch_loss(queries: Tensor, passages: Tensor, targets: Tensor, left_out: Tensor) -> Tensor:
    """Negative log-likelihood of each query's passage among all passages of the batch.

    loss_q = log Σ_p exp(q · p) − q · p⁺, where p goes over all passages but those that are left out: the other
    passages that answer the query, which so are never negatives of it. Source: Karpukhin et al. 2020, equation 2, with
    the negatives of section 3.2; the paper's code leaves none out.

    Args:
        queries: fp32 [Q, D].
        passages: fp32 [P, D].
        targets: int64 [Q], the place of each query's passage.
        left_out: bool [Q, P]; never a target.

    Returns:
        fp32 [Q] in nats.
    """
    assert queries.dim() == passages.dim() == 2 and queries.shape[1] == passages.shape[1], "expected [Q, D] and [P, D]"
    scores = batch_scores(queries, passages, targets, left_out)
    return scores.logsumexp(dim=1) - scores.gather(1, targets[:, None]).squeeze(1)


def batch_scores(queries: Tensor, passages: Tensor, targets: Tensor, left_out: Tensor) -> Tensor:
    """Dot products fp32 [Q, P], −∞ for what is left out; arguments as in `in_batch_loss`."""
    assert left_out.shape == (len(queries), len(passages)) and left_out.dtype == torch.bool, "expected bool [Q, P]"
    assert targets.shape == (len(queries),), "expected targets [Q]"
    return (queries @ passages.T).masked_fill(left_out, -torch.inf)


def target_ranks(scores: Tensor, targets: Tensor) -> Tensor:
    """The rank of each query's passage, from 1; passages of equal score share the mean of their ranks.

    Args:
        scores: fp32 [Q, P]; −∞ for what is left out.
        targets: int64 [Q].

    Returns:
        fp64 [Q].
    """
    own = scores.gather(1, targets[:, None])
    above, equal = (scores > own).sum(dim=1), (scores == own).sum(dim=1)
    return 1 + above.double() + (equal.double() - 1) / 2
