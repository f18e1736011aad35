"""What must hold before the first update of a run. A run that breaks it stops.

`check_forward` is every trainer's: the function that is trained is that of the model. The others are PPO's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from finegrained_rlhf.core.errors import ConsistencyError
from finegrained_rlhf.core.records import Prompt, Rollout, pad_rows
from finegrained_rlhf.models.logprobs import chosen_logprobs
from finegrained_rlhf.models.policy import Policy, Seq2SeqPolicy
from finegrained_rlhf.rl.kl import log_ratio_kl
from finegrained_rlhf.runtime.processes import Processes

_BF16_STEP = 2.0**-7
FORWARD_TOLERANCE = 1e-3
"""Nats by which fp32 log-probabilities of our passes and of `model.forward` may differ where logits reach 10, and in
proportion more where they are larger. Sums in another order differ by about 1e-5, a head left out by far more."""
_RESPONSE = 8
"""Tokens of the longer of the two responses to each prompt that `check_forward` scores."""


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


def check_forward(policy: Policy, prompts: Sequence[Prompt], processes: Processes) -> float:
    """The log-probabilities that are trained on are those of the model's own `forward`.

    The longest and the shortest prompt, two responses to each (tokens of the prompts), go through the policy's passes,
    padded and with the work of a prompt shared, and row by row, without padding, through `model.forward`. In fp32
    whatever the precision of the run, unless the weights themselves are kept in another.

    Args:
        policy: in evaluation mode, on its device.
        prompts: of the run; none passes.
        processes: of the run. Every process checks the same batch.

    Returns:
        The largest difference in nats.

    Raises:
        ConsistencyError: it is more than `FORWARD_TOLERANCE` allows (`start_tolerance` for bf16 weights), or no number.
    """
    if not prompts:
        return 0.0
    exact = all(parameter.dtype == torch.float32 for parameter in policy.model.parameters())
    in_bf16 = not exact and processes.precision == "bf16"
    with torch.autocast(policy.device.type, dtype=torch.bfloat16, enabled=in_bf16):
        gap, largest = _forward_gap(policy, prompts)
    allowed = FORWARD_TOLERANCE * max(1.0, largest / 10) if exact else start_tolerance(False, largest)
    if not gap <= allowed:
        raise ConsistencyError(
            f"the log-probabilities that would be trained on are not those of {type(policy.model).__name__}.forward: "
            f"they differ by up to {gap:.3g} nats a token, and {allowed:.1e} is allowed. This model's function is not "
            "computed right here; do not train it"
        )
    return gap


@torch.no_grad()
def _forward_gap(policy: Policy, prompts: Sequence[Prompt]) -> tuple[float, float]:
    """Largest difference in nats, infinite where one is not a number, and the largest logit."""
    config = policy.model.config
    positions = None if config.is_encoder_decoder else getattr(config, "max_position_embeddings", None)
    most = max(1, (positions or 10**9) - _RESPONSE)
    ordered = sorted(prompts, key=lambda prompt: len(prompt.input_ids))
    asked = [Prompt(p.id, p.text, p.input_ids[:most]) for p in (ordered[-1], ordered[0]) if len(p.input_ids)]
    words = [token for prompt in asked for token in prompt.input_ids] * _RESPONSE
    rows = [words[-_RESPONSE:], words[: _RESPONSE // 2]] * len(asked)
    index = torch.arange(len(asked), device=policy.device).repeat_interleave(2)
    ids, mask = pad_rows(rows, policy.pad_id, policy.device)
    ours = policy.logprobs(policy.encode(asked), index, ids, mask).logprobs
    gap = largest = 0.0
    for number, row in enumerate(rows):
        prompt, tokens = asked[number // 2].input_ids, ids[number, : len(row)]
        if isinstance(policy, Seq2SeqPolicy):
            inputs = torch.tensor([[*policy.start_ids, *row[:-1]]], device=policy.device)
            encoded = torch.tensor([prompt], device=policy.device)
            seen = torch.ones_like(inputs)  # T5Gemma would hide what looks like padding
            output = policy.model(
                input_ids=encoded, decoder_input_ids=inputs, decoder_attention_mask=seen, use_cache=False
            )
            logits = output.logits[0, len(policy.start_ids) - 1 :]
        else:
            whole = torch.tensor([[*prompt, *row]], device=policy.device)
            logits = policy.model(input_ids=whole, use_cache=False).logits[0, len(prompt) - 1 : -1]
        difference = ours[number, : len(row)] - chosen_logprobs(logits, tokens, policy.scored)
        gap = max(gap, float(difference.abs().nan_to_num(nan=torch.inf).max()))
        largest = max(largest, float(logits.float().abs().nan_to_num(posinf=0.0).max()))
    return gap, largest
