"""Self-critical sequence training: the reward over the greedy baseline, and its loss, as pure functions of tensors.

Losses are sums over rows, so that the caller can divide by a global count; a mean over a micro-batch would make the
gradient depend on how the batch was cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from finegrained_rlhf.rl.kl import KLEstimator, kl_estimates
from finegrained_rlhf.rl.stats import check_token_tensors

if TYPE_CHECKING:
    from torch import Tensor


def self_critical_rewards(sampled: Tensor, greedy: Tensor) -> Tensor:
    """r(q_s, q) = score(q_s) − score(q): what a sample earns more than the greedy response to the same prompt.

    Source: Rennie et al. (2017), eq. 8; thesis, section 4.2.2.

    Args:
        sampled: fp [P, m] score of each sample.
        greedy: fp [P] score of the greedy response.

    Returns:
        fp [P, m].

    Raises:
        ValueError: shapes that do not fit, or integers.
    """
    if sampled.dim() != 2 or greedy.shape != sampled.shape[:1]:
        raise ValueError(f"need scores [P, m] and [P], got {tuple(sampled.shape)} and {tuple(greedy.shape)}")
    if not (sampled.is_floating_point() and greedy.is_floating_point()):
        raise ValueError(f"scores must be floating point, got {sampled.dtype} and {greedy.dtype}")
    return sampled - greedy.unsqueeze(1)


def weighted_likelihood_loss(
    logprobs: Tensor, weights: Tensor, mask: Tensor, importance: Tensor | None = None
) -> Tensor:
    """−Σ_r w_r Σ_t ρ_rt log Pr(token t of row r): the form that the self-critical loss and cross-entropy share.

    With w = r(q_i, q) / m over m samples it is Σ_x L_RL(x), L_RL(x) = −(1/m) Σ_i r(q_i, q) log Pr(q_i | x) (thesis, eq.
    before 4.3). log Pr is that of the full softmax, end of sequence included, whatever the samples were drawn from.

    Args:
        logprobs: fp32 [R, T].
        weights: fp32 [R], no gradient: r / m of a sample, 1 of a reference to imitate, each over its global count.
        mask: int [R, T], 1 = real token.
        importance: fp32 [R, T] ρ, no gradient, where another policy drew the rows (`rl.importance`); 1 when None.

    Returns:
        A scalar, differentiable in `logprobs`.

    Raises:
        ValueError: shapes or types that do not fit.
    """
    import torch

    check_token_tensors(mask, logprobs=logprobs, **({} if importance is None else {"importance": importance}))
    if weights.shape != mask.shape[:1] or not weights.is_floating_point():
        raise ValueError(f"need floating-point weights [{mask.shape[0]}], got {weights.dtype} {tuple(weights.shape)}")
    weighed = logprobs if importance is None else logprobs * importance.detach()
    sequence = torch.where(mask.bool(), weighed, 0.0).sum(dim=1)
    return -(weights.detach() * sequence).sum()


def weighted_kl_loss(
    logprobs: Tensor,
    reference_logprobs: Tensor,
    weights: Tensor,
    mask: Tensor,
    estimator: KLEstimator,
    importance: Tensor | None = None,
) -> Tensor:
    """Σ_r w_r Σ_t ρ_rt k(token t of row r), with k the estimate of KL(π‖π_ref) at a token (`rl.kl.kl_estimates`).

    With w = β / m over the number of prompts it is β times the mean KL of a response in nats, summed over its tokens,
    of the distribution that the rows were drawn from.

    Args:
        logprobs: fp32 [R, T] of the policy being trained.
        reference_logprobs: fp32 [R, T] of the policy that it is held to, no gradient.
        weights: fp32 [R], no gradient; 0 leaves a row out.
        mask: int [R, T], 1 = real token, end of sequence included.
        estimator: `k1`, `k2` or `k3`.
        importance: fp32 [R, T] ρ, no gradient, where another policy drew the rows (`rl.importance`); 1 when None.

    Returns:
        A scalar, differentiable in `logprobs`.

    Raises:
        ValueError: shapes or types that do not fit, or no such estimator.
    """
    import torch

    check_token_tensors(mask, **({} if importance is None else {"importance": importance}))
    if weights.shape != mask.shape[:1] or not weights.is_floating_point():
        raise ValueError(f"need floating-point weights [{mask.shape[0]}], got {weights.dtype} {tuple(weights.shape)}")
    kl = kl_estimates(logprobs, reference_logprobs.detach(), mask, estimator)
    weighed = kl if importance is None else torch.where(mask.bool(), kl * importance.detach(), 0.0)
    return (weights.detach() * weighed.sum(dim=1)).sum()
