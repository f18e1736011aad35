"""Losses on pairs of answers to one prompt, of which one was preferred: DPO and what holds the preferred answer up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn import functional as F

if TYPE_CHECKING:
    from torch import Tensor


def preference_losses(
    chosen: Tensor,
    rejected: Tensor,
    reference_chosen: Tensor,
    reference_rejected: Tensor,
    *,
    beta: float,
    positive: float = 0.0,
) -> Tensor:
    """−log σ(β (Δ_w − Δ_l − λ max(0, −Δ_w))) of each pair, with Δ = log π(y|x) − log π_ref(y|x).

    With λ = 0 it is DPO (Rafailov et al., 2023, eq. 7). It asks for a margin alone, so that the likelihood of both
    answers may fall where they hardly differ; λ > 0 takes that back (DPO-Positive; Pal et al., 2024, eq. 3). The
    log-probabilities may be sums over some tokens of the answers alone, where policy and reference agree on which.

    Args:
        chosen: fp32 [M], log π of the preferred answers, in nats.
        rejected: fp32 [M], log π of the others.
        reference_chosen: fp32 [M], log π_ref of the preferred ones.
        reference_rejected: fp32 [M], log π_ref of the others.
        beta: β > 0.
        positive: λ ≥ 0.

    Returns:
        fp32 [M].

    Raises:
        ValueError: not four vectors of one length, or a setting outside its range.
    """
    if chosen.ndim != 1 or {part.shape for part in (rejected, reference_chosen, reference_rejected)} != {chosen.shape}:
        raise ValueError("expected four vectors of log-probabilities of one length")
    if not beta > 0 or positive < 0:
        raise ValueError(f"expected beta above 0 and positive from 0 on, got {beta} and {positive}")
    better, worse = chosen - reference_chosen, rejected - reference_rejected
    return F.softplus(-beta * (better - worse - positive * F.relu(-better)))
