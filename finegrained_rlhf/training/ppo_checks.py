"""What must hold before the first update of a PPO run, and at every step. A run that breaks it stops."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from finegrained_rlhf.core.errors import ConsistencyError
from finegrained_rlhf.core.records import Rollout
from finegrained_rlhf.rl.kl import log_ratio_kl
from finegrained_rlhf.runtime.processes import Processes


def largest_kl(rollout: Rollout, reference: Tensor) -> float:
    """The largest |log π − log π_ref| of a rollout's tokens; infinite where one is not a number."""
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


_NUMBERS = ("loss/policy", "loss/value", "gradient_norm", "kl")


def check_finite(step: int, metrics: Mapping[str, float], names: Sequence[str] = _NUMBERS) -> None:
    """Losses, gradient norm and KL of a step are numbers.

    Args:
        step: the training step.
        metrics: of that step.
        names: which of them; PPO's by default.

    Raises:
        ConsistencyError: one is not.
    """
    for name in names:
        if not math.isfinite(metrics[name]):
            raise ConsistencyError(
                f"step {step}: {name} is {metrics[name]}; the last checkpoint is sound, continue from it with a "
                "lower learning rate or in fp32"
            )
