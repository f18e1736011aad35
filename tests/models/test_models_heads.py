"""Heads that multiply in bf16 and give fp32: values and gradients from loops, and where the layer itself is called."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from rl_toy import policy, prompts, responses
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from finegrained_rlhf.models.families import heads
from finegrained_rlhf.models.families.heads import HeadOfPass
from finegrained_rlhf.models.logprobs import token_logprobs


def bf16() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def layer(bias: bool = False) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(5, 7, bias=bias)


def product(a: Tensor, b: Tensor) -> Tensor:
    """The product of both factors' bf16 roundings, summed in fp64 by loops."""
    rounded = [[[float(x) for x in row] for row in m.detach().bfloat16()] for m in (a, b.t())]
    return torch.tensor([[sum(x * y for x, y in zip(p, q, strict=True)) for q in rounded[1]] for p in rounded[0]])


@pytest.mark.parametrize(("bias", "columns"), [(False, 1024), (True, 3)])
def test_logits_and_gradients_are_those_of_rounded_factors(
    bias: bool, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "_COLUMNS", columns)
    head, hidden, upstream = layer(bias), torch.randn(2, 3, 5), torch.randn(2, 3, 7)
    hidden.requires_grad_(True)
    with bf16():
        logits = HeadOfPass(head)(hidden)
    (logits * upstream).sum().backward()
    states, gradient = hidden.detach().reshape(6, 5), upstream.reshape(6, 7)
    expected = product(states, head.weight.t()) + (head.bias.detach() if bias else 0.0)
    assert logits.dtype == torch.float32 and hidden.grad is not None and head.weight.grad is not None
    torch.testing.assert_close(logits.detach().reshape(6, 7), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(hidden.grad.reshape(6, 5), product(gradient, head.weight), atol=1e-5, rtol=0)
    torch.testing.assert_close(head.weight.grad, product(gradient.t(), states), atol=1e-5, rtol=0)
    if bias:
        assert head.bias.grad is not None
        torch.testing.assert_close(head.bias.grad, gradient.sum(dim=0), atol=1e-5, rtol=0)


def test_what_a_small_step_changes_is_seen_at_large_logits() -> None:
    head = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[5.0, 0.0], [5.0, 2.0**-6]]))
    states = torch.tensor([[4.0, 1.0]])
    with bf16(), torch.no_grad():
        rounded, kept = head(states), HeadOfPass(head)(states)
    assert rounded.tolist() == [[20.0, 20.0]] and kept.tolist() == [[20.0, 20.0 + 2.0**-6]]


def test_a_head_with_a_hook_and_fp32_are_the_layers_own() -> None:
    head, hidden = layer(), torch.randn(4, 5)
    assert torch.equal(HeadOfPass(head)(hidden), head(hidden))
    head.register_forward_hook(lambda module, inputs, output: 2 * output)
    with bf16():
        assert torch.equal(HeadOfPass(head)(hidden), head(hidden)) and head(hidden).dtype == torch.bfloat16


def test_a_frozen_head_gets_no_gradient() -> None:
    head, hidden = layer().requires_grad_(False).bfloat16(), torch.randn(4, 5, requires_grad=True)
    with bf16():
        HeadOfPass(head)(hidden).sum().backward()
    assert head.weight.grad is None and hidden.grad is not None and hidden.grad.dtype == torch.float32


class Casts(TorchDispatchMode):
    """Counts what casts a matrix of a shape to bf16, and keeps weak references to the copies."""

    def __init__(self, shape: torch.Size) -> None:
        super().__init__()
        self.shape, self.copies = shape, []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and made.dtype == torch.bfloat16 and made.shape == self.shape:
            self.copies.append(weakref.ref(made))
        return made


def chunked(head: Any, hidden: Tensor, chunk_tokens: int) -> Tensor:
    """Log-probabilities fp32 [R, T] of the tokens 0, 1, 2, …"""
    tokens = torch.arange(hidden.shape[0] * hidden.shape[1]).view(hidden.shape[:2]) % 7
    return token_logprobs(hidden, tokens, torch.ones_like(tokens), head, chunk_tokens=chunk_tokens).logprobs


@pytest.mark.parametrize("chunk_tokens", [2, 100])
def test_a_pass_rounds_the_weight_once_and_keeps_no_copy(chunk_tokens: int) -> None:
    """For three chunks, or one, and for their backward pass."""
    head, hidden = layer(), torch.randn(2, 3, 5, requires_grad=True)
    gc.disable()  # what is gone is gone without a collection
    try:
        with Casts(head.weight.shape) as casts:
            with bf16():
                logprobs = chunked(HeadOfPass(head), hidden, chunk_tokens)
            assert len(casts.copies) == 1 and casts.copies[0]() is not None
            logprobs.sum().backward()
            assert len(casts.copies) == 1 and casts.copies[0]() is None
            with bf16(), torch.no_grad():
                chunked(HeadOfPass(head), hidden, chunk_tokens)
            assert len(casts.copies) == 2 and casts.copies[1]() is None
    finally:
        gc.enable()


def test_chunks_by_one_copy_give_what_a_copy_for_each_gives() -> None:
    """Bit for bit, the gradient of the weight too: it is summed over the chunks in fp32."""
    found = []
    for once in (True, False):
        head, hidden = layer(), torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(1), requires_grad=True)
        kept = HeadOfPass(head)
        with bf16():
            logprobs = chunked(kept if once else lambda states, head=head: HeadOfPass(head)(states), hidden, 2)
        (logprobs * torch.arange(6).view(2, 3)).sum().backward()
        assert head.weight.grad is not None and head.weight.grad.dtype == torch.float32
        found.append((logprobs.detach(), head.weight.grad, hidden.grad))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other) and one.any()


@pytest.mark.parametrize("kind", ["t5", "gpt2", "bart"])
def test_a_policys_pass_rounds_its_head_once_and_the_next_sees_the_weights_of_now(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[int, ...]] = []

    def counted(tensor: Tensor) -> Tensor:
        made.append(tuple(tensor.shape))
        return tensor.to(torch.bfloat16)

    monkeypatch.setattr(Tensor, "bfloat16", counted)
    ours, asked = policy(kind), prompts(kind)
    ids, mask = responses(kind, 180, 7)
    index, shape = torch.arange(3).repeat_interleave(60), tuple(ours.model.lm_head.weight.shape)
    found = []
    for _ in range(2):
        made.clear()
        with bf16():
            logprobs = ours.logprobs(ours.encode(asked), index, ids, mask).logprobs
        logprobs.sum().backward()
        assert made.count(shape) == 1 and mask.sum() > 512 and len(made) > 2
        found.append(logprobs.detach())
        with torch.no_grad():
            ours.model.lm_head.weight.mul_(2)  # as a step of the optimizer, in place
    assert (found[0] - found[1]).abs().max() > 0.1
