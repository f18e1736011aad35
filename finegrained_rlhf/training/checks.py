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
from finegrained_rlhf.models.families.fused import is_fused, unfused
from finegrained_rlhf.models.logprobs import chosen_logprobs
from finegrained_rlhf.models.policy import Policy, Seq2SeqPolicy
from finegrained_rlhf.rl.kl import log_ratio_kl
from finegrained_rlhf.runtime.processes import Processes

_BF16_ROUNDING = 2.0**-8
"""By how much of itself a number is off in bf16, at most."""
FORWARD_TOLERANCE = 1e-3
"""Nats by which fp32 log-probabilities of our passes and of `model.forward` may differ where logits reach 10, and in
proportion more where they are larger. Sums in another order differ by about 1e-5, a head left out by far more."""
_RESPONSE = 8
"""Tokens of the longer of the two responses to each prompt that `check_forward` scores."""


def start_tolerance(exact: bool, largest_logit: float = 0.0) -> float:
    """How far log-probabilities of one policy may differ before the first update.

    In fp32 1e-5. Under bf16 autocast, or by decoding's own numbers, max(0.1, 4 · 2⁻⁸ · max |z|) for logits z. Logits
    are fp32 sums there (`models/families/heads.py`), but what enters the head was rounded on the way: bf16 has 8 bits,
    so a linear layer's output and the head's input are off by up to 2⁻⁸ of themselves, and a decoding step, which
    multiplies other shapes by other kernels than the update, rounds the other way now and then. A state that is off by
    η of its length moves a logit by up to η · max |z| and a log-probability, logit minus normaliser, by twice that. η =
    2 · 2⁻⁸ is allowed: two roundings, all in one direction.

    Measured between decoding and update in units of 2⁻⁸ · max |z|, on the benchmarks' random models, which write as
    trained ones do, with logits of 5 and of 25: at most 0.6 with 2 layers of width 32, 0.5 with T5-small's 6 and 6,
    0.8 with 6 layers of GPT-2, 0.9 with 4 of Qwen3, 2.2 with 8 of SmolLM2, whose largest difference was 0.13 nats
    (allowed: 0.4). So the margin is 1.8. `test_training_start_tolerance.py` measures again. Random weights large enough
    to multiply a small change of the input exceed it (tiny T5s with a standard deviation of 0.3 in every matrix: 10
    units and more); there `rollout.logprobs=update` compares one function with itself.

    Where `model.forward` is compared under bf16 (`check_forward`), its logits are rounded too, by at most one unit, and
    its normaliser by another.

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
    return max(0.1, 4 * _BF16_ROUNDING * largest_logit)


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
    kl = log_ratio_kl(rollout.logprobs, reference, rollout.written).abs().nan_to_num(nan=torch.inf)
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
    whatever the precision of the run, unless the weights themselves are kept in another. `model.forward` is that of a
    model that is not fused; where the policy is and the run's precision is bf16, they are compared in it too.

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
    in_bf16 = processes.precision == "bf16"
    gaps, passes = [], [in_bf16 and not exact]
    if exact and in_bf16 and is_fused(policy.model):
        passes.append(True)
    for rounded in passes:
        with torch.autocast(policy.device.type, dtype=torch.bfloat16, enabled=rounded):
            gap, largest = _forward_gap(policy, prompts)
        in_fp32 = exact and not rounded
        allowed = FORWARD_TOLERANCE * max(1.0, largest / 10) if in_fp32 else start_tolerance(False, largest)
        if not gap <= allowed:
            raise ConsistencyError(
                f"the log-probabilities that would be trained on are not those of {type(policy.model).__name__}."
                f"forward: they differ by up to {gap:.3g} nats a token, and {allowed:.1e} is allowed. This model's "
                "function is not computed right here; do not train it"
            )
        gaps.append(gap)
    return gaps[0]


@torch.no_grad()
def _forward_gap(policy: Policy, prompts: Sequence[Prompt]) -> tuple[float, float]:
    """Largest difference in nats, infinite where one is not a number, and the largest logit."""
    config = policy.model.config
    positions = None if config.is_encoder_decoder else getattr(config, "max_position_embeddings", None)
    most = max(1, (positions or 10**9) - _RESPONSE)
    ordered = sorted(prompts, key=lambda prompt: len(prompt.input_ids))
    checked = [Prompt(p.id, p.text, p.input_ids[:most]) for p in (ordered[-1], ordered[0]) if len(p.input_ids)]
    words = [token for prompt in checked for token in prompt.input_ids] * _RESPONSE
    rows = [words[-_RESPONSE:], words[: _RESPONSE // 2]] * len(checked)
    index = torch.arange(len(checked), device=policy.device).repeat_interleave(2)
    ids, mask = pad_rows(rows, policy.pad_id, policy.device)
    ours = policy.logprobs(policy.encode(checked), index, ids, mask).logprobs
    gap = largest = 0.0
    for number, row in enumerate(rows):
        prompt, tokens = checked[number // 2].input_ids, ids[number, : len(row)]
        if isinstance(policy, Seq2SeqPolicy):
            inputs = torch.tensor([[*policy.start_ids, *row[:-1]]], device=policy.device)
            encoded = torch.tensor([prompt], device=policy.device)
            no_padding = torch.ones_like(inputs)  # T5Gemma would hide what looks like padding
            with unfused(policy.model):
                output = policy.model(
                    input_ids=encoded, decoder_input_ids=inputs, decoder_attention_mask=no_padding, use_cache=False
                )
            logits = output.logits[0, len(policy.start_ids) - 1 :]
        else:
            full = torch.tensor([[*prompt, *row]], device=policy.device)
            with unfused(policy.model):
                logits = policy.model(input_ids=full, use_cache=False).logits[0, len(prompt) - 1 : -1]
        difference = ours[number, : len(row)] - chosen_logprobs(logits, tokens, policy.scored)
        gap = max(gap, float(difference.abs().nan_to_num(nan=torch.inf).max()))
        largest = max(largest, float(logits.float().abs().nan_to_num(posinf=0.0).max()))
    return gap, largest
