"""Importance weights between the policy that drew a response and the one that is trained on it, before its update.

Where the two are one function there is nothing to weigh. An engine of other kernels, another precision or older weights
draws from a policy that is nearly the trained one: the weights π/μ make the gradient unbiased again, the cap keeps
their variance finite. Knows no engine and no model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from finegrained_rlhf.core.records import ImportanceWeights
from finegrained_rlhf.rl.stats import check_token_tensors

if TYPE_CHECKING:
    from torch import Tensor

ImportanceMode = Literal[
    "token_truncate", "token_mask", "prefix_truncate", "prefix_mask", "sequence_truncate", "sequence_mask"
]


def importance_weights(
    logprobs: Tensor, sampler_logprobs: Tensor, mask: Tensor, *, cap: float, mode: ImportanceMode = "token_truncate"
) -> ImportanceWeights:
    """w_t = min(ρ_t, C) with ρ_t = π(a_t) / μ(a_t) = exp(log π(a_t) − log μ(a_t)), π trained and μ sampled from.

    The sequence modes take ρ = exp Σ_t (log π(a_t) − log μ(a_t)) of the whole response at each of its tokens, the
    prefix modes that of the tokens up to t; the modes that mask take 0 instead of C where ρ is above C. Without a cap a
    sequence's ratio makes the gradient that of π; a token's does not, nor does a prefix's unless it multiplies the
    *rewards* at t, decision by decision (docs/algorithms.md).

    Source: truncation, Yao et al. (2025), "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training"
    (truncated importance sampling, TIS; Ionides, 2008); prefixes, Precup et al. (2000), per-decision importance
    sampling; masking and sequences, Liu et al. (2025), "When Speed Kills Stability". TRL calls the modes of tokens and
    sequences `vllm_importance_sampling_mode`.

    Args:
        logprobs: fp32 [R, T] under the trained policy before the update, no gradient.
        sampler_logprobs: fp32 [R, T] as the engine that drew the tokens gave them, of the same distribution (plain
            softmax or tempered and truncated).
        mask: int [R, T], 1 = real token.
        cap: C ≥ 1.
        mode: what is weighed, and what happens beyond the cap.

    Raises:
        ValueError: shapes or types that do not fit, a cap below 1, or a mode that is none.
    """
    import torch

    check_token_tensors(mask, logprobs=logprobs, sampler_logprobs=sampler_logprobs)
    if not cap >= 1:
        raise ValueError(f"need a cap of at least 1, got {cap}")
    if mode not in get_args(ImportanceMode):
        raise ValueError(f"mode must be one of {', '.join(get_args(ImportanceMode))}, got {mode!r}")
    real = mask.bool()
    gaps = torch.where(real, (logprobs - sampler_logprobs).detach(), 0.0)
    if mode.startswith("sequence"):
        gaps = torch.where(real, gaps.sum(dim=1, keepdim=True), 0.0)
    elif mode.startswith("prefix"):
        gaps = torch.where(real, gaps.cumsum(dim=1), 0.0)
    ratios = gaps.exp()
    capped = ratios > cap
    beyond = 0.0 if mode.endswith("mask") else cap
    return ImportanceWeights(torch.where(capped, beyond, ratios), ratios, capped)
