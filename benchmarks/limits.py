"""The least time that a phase can take on a machine: bytes over its copy bandwidth, operations over its matmul rate.

Counts matrix products only (2·m·n·k operations each) of the least work that gives the result: each prompt is encoded
once for all its samples, real tokens alone are computed, nothing is computed twice, and a reward model's last layer is
computed where its head reads. Norms, softmax, sampling, segmentation and the optimizer are taken to be free. Knows
shapes and lengths; measures nothing.

In the formulas d is a width, f the inner width, V the vocabulary, Λ the number of layers, L a prompt's and T a
response's length in tokens. Attention is as wide as the model in every shape here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.machine import Rates
from benchmarks.profiles import LongformerShape, Profile, T5Shape

VALUE_BYTES = {"fp32": 4, "bf16": 2}
BACKWARD = 2  # a backward pass has two products for each one of the forward pass


@dataclass(frozen=True)
class Work:
    """What one step worked on.

    Attributes:
        prompts: length of each prompt in tokens.
        responses: lengths of the responses to each prompt.
        reward_inputs: for each reward model, (length in tokens, positions that its head reads) of each input.
    """

    prompts: Sequence[int]
    responses: Sequence[Sequence[int]]
    reward_inputs: Sequence[Sequence[tuple[int, int]]]


def encoder_flops(shape: T5Shape, length: int) -> float:
    """One prompt through the encoder: Λ · L · (8d² + 4df + 4Ld)."""
    d, f = shape.width, shape.inner
    return shape.layers * length * (8.0 * d * d + 4.0 * d * f + 4.0 * length * d)


def cross_flops(shape: T5Shape, length: int) -> float:
    """Cross-attention keys and values of one prompt: Λ · L · 4d²."""
    return shape.layers * length * 4.0 * shape.width**2


def token_flops(shape: T5Shape, prompt: int, position: int) -> float:
    """One response token, the `position`-th (from 1), through the decoder: Λ · (12d² + 4df + 4·position·d + 4Ld)."""
    d, f = shape.width, shape.inner
    return shape.layers * (12.0 * d * d + 4.0 * d * f + 4.0 * position * d + 4.0 * prompt * d)


def response_flops(shape: T5Shape, prompt: int, length: int) -> float:
    """Σ_{t=1}^{T} `token_flops`."""
    return length * (token_flops(shape, prompt, 0) + shape.layers * 2.0 * (length + 1) * shape.width)


def forward_flops(shape: T5Shape, work: Work, vocabulary: int = 0) -> float:
    """A teacher-forced pass over all responses: encoder and cross keys once a prompt, head 2dV a token (V may be 0)."""
    total = 0.0
    for prompt, lengths in zip(work.prompts, work.responses, strict=True):
        total += encoder_flops(shape, prompt) + cross_flops(shape, prompt)
        total += 2.0 * sum(lengths) * shape.width * vocabulary
        total += sum(response_flops(shape, prompt, length) for length in lengths)
    return total


def longformer_flops(shape: LongformerShape, length: int, read: int) -> float:
    """One input through a Longformer whose head reads `read` positions; each token sees K = min(L, window + 1) keys.

    (Λ − 1) · L · (8d² + 4df + 4Kd)  +  4Ld² + read · (4d² + 4df + 4Kd).
    """
    d, f, keys = shape.width, shape.inner, min(length, shape.window + 1)
    layer = 8.0 * d * d + 4.0 * d * f + 4.0 * keys * d
    last = 4.0 * length * d * d + read * (4.0 * d * d + 4.0 * d * f + 4.0 * keys * d)
    return (shape.layers - 1) * length * layer + last


def _rollout(profile: Profile, work: Work, rates: Rates) -> float:
    """Encode every prompt once, then one token step after the other, each at the slower of bytes and operations.

    A step reads the decoder's weights Λ(6d² + 2df) and the head's dV once for all rows, the cross keys and values 2ΛLd
    of each prompt that still has a row, and the self keys and values 2Λtd of each row. Self-attention reads 4d² and
    cross-attention 2d² of weights (its key and value projections ran before).
    """
    shape, size, vocabulary = profile.policy, VALUE_BYTES[profile.precision], profile.vocabulary
    d, f = shape.width, shape.inner
    encoder = sum(encoder_flops(shape, n) + cross_flops(shape, n) for n in work.prompts) / rates.matmul
    seconds = max(encoder, shape.layers * (6 * d * d + 2 * d * f) * size / rates.copy)
    weights = shape.layers * (6 * d * d + 2 * d * f) + d * vocabulary
    longest = max((length for lengths in work.responses for length in lengths), default=0)
    for t in range(1, longest + 1):
        values, operations = float(weights), 0.0
        for prompt, lengths in zip(work.prompts, work.responses, strict=True):
            rows = sum(length >= t for length in lengths)
            values += shape.layers * 2 * d * (prompt * (rows > 0) + t * rows)
            operations += rows * (token_flops(shape, prompt, t) + 2.0 * d * vocabulary)
        seconds += max(values * size / rates.copy, operations / rates.matmul)
    return seconds


def update_flops(profile: Profile, work: Work) -> float:
    """Epochs · 3 · (policy pass with head + value pass)."""
    forward = forward_flops(profile.policy, work, profile.vocabulary) + forward_flops(profile.value, work)
    return profile.epochs * (1 + BACKWARD) * forward


def limits(profile: Profile, work: Work, rates: Rates) -> dict[str, float]:
    """Seconds by phase.

    rollout: see `_rollout`. scoring: (reference pass with head + value pass) / matmul rate, in bf16 with a policy pass
    as well (in fp32 the decode's own log-probabilities serve). rewards: all Longformer passes / matmul rate. update:
    `update_flops` / matmul rate. total: their sum.
    """
    passes = 1 if profile.precision == "fp32" else 2
    scoring = passes * forward_flops(profile.policy, work, profile.vocabulary) + forward_flops(profile.value, work)
    rewards = sum(longformer_flops(profile.reward, *item) for inputs in work.reward_inputs for item in inputs)
    seconds = {
        "rollout": _rollout(profile, work, rates),
        "scoring": scoring / rates.matmul,
        "rewards": rewards / rates.matmul,
        "update": update_flops(profile, work) / rates.matmul,
    }
    return {**seconds, "total": sum(seconds.values())}
