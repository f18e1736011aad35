"""Logits in fp32 from a head that multiplies in bf16.

Under bf16 autocast a linear layer rounds its output as well: a logit of 20 to steps of 1/8, several times what a small
policy update changes. The product of bf16 numbers is summed in fp32 anyway; here it stays so. Knows linear layers and
autocast, no model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def head_logits(head: Any, hidden: Tensor) -> Tensor:
    """Logits [..., V] of states [..., D] by a language-model head; fp32 under bf16 autocast.

    A head that is more than a linear layer (hooks, adapters) is called as it stands.
    """
    device = hidden.device.type
    in_bf16 = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.bfloat16
    if not in_bf16 or not _is_product(head):
        logits: Tensor = head(hidden)
        return logits
    product: Tensor = _Bf16Product.apply(hidden.flatten(0, -2), head.weight)  # type: ignore[no-untyped-call]
    if head.bias is not None:
        product = product + head.bias.float()
    return product.unflatten(0, hidden.shape[:-1])


def _is_product(head: Any) -> bool:
    """True for a linear layer whose `forward` is x Wᵀ + b, and nothing is hooked on it."""
    plain = type(head) is nn.Linear or getattr(type(head), "is_product", False)
    return plain and not head._forward_hooks and not head._forward_pre_hooks and "forward" not in vars(head)


def bf16_product(a: Tensor, b: Tensor) -> Tensor:
    """The matrix product of bf16 [n, k] and bf16 [k, m] in fp32, without gradient."""
    with torch.autocast(a.device.type, enabled=False):
        return torch.mm(a, b, out_dtype=torch.float32) if a.is_cuda else a.float() @ b.float()


class _Bf16Product(torch.autograd.Function):
    """x Wᵀ with factors rounded to bf16 and sums in fp32, in both directions.

    x float [n, D], W float [V, D]; the result fp32 [n, V].
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        factors = x.bfloat16(), weight.bfloat16()
        ctx.save_for_backward(*factors)
        ctx.dtypes = x.dtype, weight.dtype
        return bf16_product(factors[0], factors[1].t())

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        rounded = gradient.bfloat16()
        of_x = bf16_product(rounded, weight).to(ctx.dtypes[0]) if ctx.needs_input_grad[0] else None
        of_weight = bf16_product(rounded.t(), x).to(ctx.dtypes[1]) if ctx.needs_input_grad[1] else None
        return of_x, of_weight
