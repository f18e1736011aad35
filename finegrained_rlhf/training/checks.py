"""What must hold before the first update of a PPO run. A run that breaks it stops."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from finegrained_rlhf.core.errors import ConsistencyError
from finegrained_rlhf.core.records import Rollout
from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.rl.kl import log_ratio_kl
from finegrained_rlhf.runtime.processes import Processes

_BF16_STEP = 2.0**-7


def start_tolerance(exact: bool, largest_logit: float = 0.0) -> float:
    """How far log-probabilities of one policy may differ before the first update.

    In fp32 1e-5. In bf16 a logit of size |z| is known to one unit in the last place, 2^(⌊log2 |z|⌋ − 7), which is 0.125
    from 16 on: no fixed tolerance fits all policies. The logit and its normaliser may each be off by one unit, so
    2 · 2^(⌊log2 |z|⌋ − 7) are allowed, at least 0.1.

    Args:
        exact: log-probabilities are computed in fp32 by one function.
        largest_logit: max |z| of the policy.

    Returns:
        A bound in nats a token.
    """
    if exact:
        return 1e-5
    if not (math.isfinite(largest_logit) and largest_logit > 0):
        return 0.1
    return max(0.1, 2 * 2.0 ** math.floor(math.log2(largest_logit)) * _BF16_STEP)


@torch.no_grad()
def largest_logit(policy: Policy, rollout: Rollout) -> float:
    """Max |z| over the logits of a rollout's first response, as they are scored (over the temperature, if any)."""
    if not len(rollout.texts):
        return 0.0
    length = max(int(rollout.lengths()[0]), 1)
    memory = policy.encode([rollout.prompts[0]])
    first = torch.zeros(1, dtype=torch.long, device=rollout.response_ids.device)
    logits = policy.head(policy.hidden(memory, first, rollout.response_ids[:1, :length])[0])
    largest = float(logits.float().abs().nan_to_num(nan=0.0, posinf=0.0).max())
    return largest / (policy.scored.temperature if policy.scored else 1.0)


def largest_kl(rollout: Rollout, reference: Tensor) -> float:
    """The largest |log π − log π_ref| of a rollout's tokens, in nats; infinite where one is not a number.

    Args:
        rollout: R responses with behaviour log-probabilities.
        reference: fp32 [R, T] log-probabilities.
    """
    kl = log_ratio_kl(rollout.logprobs, reference, rollout.response_mask).abs().nan_to_num(nan=torch.inf)
    return float(kl.max()) if kl.numel() else 0.0


def check_start(rollout: Rollout, reference: Tensor, tolerance: float, processes: Processes) -> None:
    """Before the first update the policy is its reference, on every process.

    Args:
        rollout: with behaviour log-probabilities.
        reference: fp32 [R, T] log-probabilities.
        tolerance: in nats a token.
        processes: of the run.

    Raises:
        ConsistencyError: it is not.
    """
    largest = max(processes.gather_objects([largest_kl(rollout, reference)]))
    if largest > tolerance:
        raise ConsistencyError(
            f"before the first update the policy differs from its reference by {largest:.3g} in log-probability"
        )


def check_ratio(largest: float, tolerance: float) -> None:
    """Before the first update every probability ratio is 1.

    Args:
        largest: |log ratio| over all tokens and processes.
        tolerance: in nats.

    Raises:
        ConsistencyError: it is not.
    """
    if largest > tolerance:
        raise ConsistencyError(
            f"before the first update a probability ratio differs from 1: |log ratio| = {largest:.3g}"
        )
