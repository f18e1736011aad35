"""The least time that a phase can take on a machine: bytes over its copy bandwidth, operations over its matmul rate.

Counts matrix products only (2·m·n·k operations each) of the least work that gives the result: each prompt is encoded
once for all its samples, real tokens alone are computed, nothing is computed twice, and a reward model's last layer is
computed where its head reads. Norms, softmax, sampling, segmentation and the optimizer are taken to be free. Knows
shapes and lengths; measures nothing.

In the formulas d is a width, f the inner width, V the vocabulary, Λ the number of layers, L a prompt's and T a
response's length in tokens. Feed-forward layers have g = 2 matrices or, gated, 3. A T5's or T5Gemma's attention is
as wide as the model; a decoder-only model's queries are A wide (heads · head width), its keys and values K.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.families import CausalShape, T5Shape
from benchmarks.machine import Rates
from benchmarks.profiles import LongformerShape, Profile

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


Shape = T5Shape | CausalShape


def layer_weights(shape: Shape) -> int:
    """Weights of one layer that a decoding step reads: 6d² + g·df of a T5, 2dA + 2dK + g·df of a decoder-only model."""
    d, inner = shape.width, feed_forward_weights(shape)
    if isinstance(shape, T5Shape):
        return 6 * d * d + inner
    queries, keys = shape.heads * shape.head_width, shape.key_heads * shape.head_width
    return 2 * d * queries + 2 * d * keys + inner


def feed_forward_weights(shape: Shape) -> int:
    """Weights of one layer's feed-forward part: g·df."""
    return (3 if shape.gated else 2) * shape.width * shape.inner


def query_width(shape: Shape) -> int:
    """A: d of a T5."""
    return shape.width if isinstance(shape, T5Shape) else shape.heads * shape.head_width


def key_width(shape: Shape) -> int:
    """K: d of a T5."""
    return shape.width if isinstance(shape, T5Shape) else shape.key_heads * shape.head_width


def encoder_flops(shape: Shape, length: int) -> float:
    """One prompt, through a T5's encoder Λ · L · (8d² + 2g·df + 4Ld), else Λ · (2L · weights + 4A · L(L + 1) / 2)."""
    d = shape.width
    if isinstance(shape, CausalShape):
        return shape.layers * (2.0 * length * layer_weights(shape) + 2.0 * query_width(shape) * length * (length + 1))
    return shape.layers * length * (8.0 * d * d + 2.0 * feed_forward_weights(shape) + 4.0 * length * d)


def cross_flops(shape: Shape, length: int) -> float:
    """Cross-attention keys and values of one prompt: Λ · L · 4d²; none in a decoder-only model."""
    if isinstance(shape, CausalShape):
        return 0.0
    return shape.layers * length * 4.0 * shape.width**2


def token_flops(shape: Shape, prompt: int, position: int) -> float:
    """One response token, the `position`-th (from 1), through the decoder: Λ · (2 · weights + 4A · (position + L)).

    A T5's 2 · weights are 12d² + 2g·df.
    """
    return shape.layers * (2.0 * layer_weights(shape) + 4.0 * query_width(shape) * (position + prompt))


def response_flops(shape: Shape, prompt: int, length: int) -> float:
    """Σ_{t=1}^{T} `token_flops`."""
    return length * (token_flops(shape, prompt, 0) + shape.layers * 2.0 * (length + 1) * query_width(shape))


def forward_flops(shape: Shape, work: Work, vocabulary: int = 0) -> float:
    """A teacher-forced pass over all responses: prompts once, head 2dV a response token (V may be 0).

    A T5's decoder reads its start token and all response tokens but the last; a decoder-only model has read the last
    token of the prompt already, so it reads T − 1.
    """
    total, unread = 0.0, int(isinstance(shape, CausalShape))
    for prompt, lengths in zip(work.prompts, work.responses, strict=True):
        total += encoder_flops(shape, prompt) + cross_flops(shape, prompt)
        total += 2.0 * sum(lengths) * shape.width * vocabulary
        total += sum(response_flops(shape, prompt, length - unread) for length in lengths)
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

    A step reads the decoder's weights (`layer_weights`) and the head's dV once for all rows, the keys and values 2ΛLK
    of each prompt that still has a row, and the keys and values 2ΛtK of each row. Of a T5, self-attention reads 4d² and
    cross-attention 2d² of weights (its key and value projections ran before).
    """
    shape, size, vocabulary = profile.policy, VALUE_BYTES[profile.precision], profile.vocabulary
    d, layers = shape.width, shape.layers * layer_weights(profile.policy)
    encoder = sum(encoder_flops(shape, n) + cross_flops(shape, n) for n in work.prompts) / rates.matmul
    seconds = max(encoder, layers * size / rates.copy)
    weights = layers + d * vocabulary
    longest = max((length for lengths in work.responses for length in lengths), default=0)
    for t in range(1, longest + 1):
        values, operations = float(weights), 0.0
        for prompt, lengths in zip(work.prompts, work.responses, strict=True):
            rows = sum(length >= t for length in lengths)
            values += shape.layers * 2 * key_width(shape) * (prompt * (rows > 0) + t * rows)
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
