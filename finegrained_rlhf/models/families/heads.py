"""Logits in fp32 from a head that multiplies in bf16.

Under bf16 autocast a linear layer rounds its output as well: a logit of 20 to steps of 1/8, several times what a small
policy update changes. The product of bf16 numbers is summed in fp32 anyway; here it stays so.

A pass asks for the logits chunk by chunk, and for each chunk again in its backward pass. The weight [V, D] is rounded
once for all of them (`HeadOfPass`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

_COLUMNS = 1024
Head = Callable[[Tensor], Tensor]
"""Maps states [..., D] to logits [..., V]."""


class HeadOfPass:
    """Logits [..., V] of states [..., D] by a language-model head, for one pass; fp32 under bf16 autocast.

    A head that is more than a linear layer (hooks, adapters) is called as it stands. Otherwise the first call rounds
    the weight to bf16, and the later ones, those in the backward pass too, multiply by that copy: V·D·2 bytes (none
    where the weight is bf16 already) until this object and the graph of its logits are gone. It does not see a change
    of the weight, so each pass takes one of its own. The gradient of every call reaches the weight itself.

    Args:
        layer: the head.
    """

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        self._rounded: Tensor | None = None

    def __call__(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] of states [..., D]."""
        layer = self._layer
        if not in_bf16(hidden.device.type) or not is_product(layer):
            logits: Tensor = layer(hidden)
            return logits
        if self._rounded is None:
            self._rounded = layer.weight.detach().bfloat16()
        factors = hidden.flatten(0, -2), layer.weight, self._rounded
        product: Tensor = _Bf16Product.apply(*factors)  # type: ignore[no-untyped-call]
        if layer.bias is not None:
            product = product + layer.bias.float()
        return product.unflatten(0, hidden.shape[:-1])


def in_bf16(device: str) -> bool:
    """Whether autocast computes in bf16 on this type of device."""
    return torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.bfloat16


def is_product(head: Any) -> bool:
    """True for a linear layer whose `forward` is x Wᵀ + b, and nothing is hooked on it."""
    plain = type(head) is nn.Linear or getattr(type(head), "is_product", False)
    return plain and not head._forward_hooks and not head._forward_pre_hooks and "forward" not in vars(head)


@torch.no_grad()
def bf16_product(a: Tensor, b: Tensor) -> Tensor:
    """The matrix product of bf16 [n, k] and bf16 [k, m] in fp32, without gradient."""
    with torch.autocast(a.device.type, enabled=False):
        if a.is_cuda:
            return torch.mm(a, b, out_dtype=torch.float32)
        # A CPU multiplies fp32 copies. For few rows, making one of a whole vocabulary takes half of the time; one of
        # some columns stays in its cache.
        factor = a.float()
        product = factor.new_empty(a.shape[0], b.shape[1])
        for columns, out in zip(b.split(_COLUMNS, dim=1), product.split(_COLUMNS, dim=1), strict=True):
            torch.mm(factor, columns.float(), out=out)
        return product


class _Bf16Product(torch.autograd.Function):
    """x Wᵀ with factors rounded to bf16 and sums in fp32, in both directions.

    x float [n, D], W float [V, D] and its bf16 rounding; the result fp32 [n, V].
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, rounded: Tensor) -> Tensor:
        factors = x.bfloat16(), rounded
        ctx.save_for_backward(*factors)
        ctx.dtypes = x.dtype, weight.dtype
        return bf16_product(factors[0], factors[1].t())

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        rounded = gradient.bfloat16()
        of_x = bf16_product(rounded, weight).to(ctx.dtypes[0]) if ctx.needs_input_grad[0] else None
        of_weight = bf16_product(rounded.t(), x).to(ctx.dtypes[1]) if ctx.needs_input_grad[1] else None
        return of_x, of_weight, None
