"""Heads that multiply in bf16 and give fp32: values and gradients from loops, and where the layer itself is called."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from finegrained_rlhf.models.families.heads import head_logits


def bf16() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def layer(bias: bool = False) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(5, 7, bias=bias)


def product(a: Tensor, b: Tensor) -> Tensor:
    """The product of both factors' bf16 roundings, summed in fp64 by loops."""
    rounded = [[[float(x) for x in row] for row in m.detach().bfloat16()] for m in (a, b.t())]
    return torch.tensor([[sum(x * y for x, y in zip(p, q, strict=True)) for q in rounded[1]] for p in rounded[0]])


@pytest.mark.parametrize("bias", [False, True])
def test_logits_and_gradients_are_those_of_rounded_factors(bias: bool) -> None:
    head, hidden, upstream = layer(bias), torch.randn(2, 3, 5), torch.randn(2, 3, 7)
    hidden.requires_grad_(True)
    with bf16():
        logits = head_logits(head, hidden)
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
        rounded, kept = head(states), head_logits(head, states)
    assert rounded.tolist() == [[20.0, 20.0]] and kept.tolist() == [[20.0, 20.0 + 2.0**-6]]


def test_a_head_with_a_hook_and_fp32_are_the_layers_own() -> None:
    head, hidden = layer(), torch.randn(4, 5)
    assert torch.equal(head_logits(head, hidden), head(hidden))
    head.register_forward_hook(lambda module, inputs, output: 2 * output)
    with bf16():
        assert torch.equal(head_logits(head, hidden), head(hidden)) and head(hidden).dtype == torch.bfloat16


def test_a_frozen_head_gets_no_gradient() -> None:
    head, hidden = layer().requires_grad_(False).bfloat16(), torch.randn(4, 5, requires_grad=True)
    with bf16():
        head_logits(head, hidden).sum().backward()
    assert head.weight.grad is None and hidden.grad is not None and hidden.grad.dtype == torch.float32
