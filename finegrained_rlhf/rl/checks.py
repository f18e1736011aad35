"""Checks that every formula runs on entry."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def check_token_tensors(mask: Tensor, **tensors: Tensor) -> None:
    """Require rank 2, one shape, floating-point values and a 0/1 mask.

    Args:
        mask: [R, T], 1 = real token.
        **tensors: named float tensors [R, T].

    Raises:
        ValueError: naming the tensor that does not fit.
    """
    if mask.dim() != 2:
        raise ValueError(f"mask must be [R, T], got shape {tuple(mask.shape)}")
    if mask.is_floating_point():
        raise ValueError("mask must be an integer or boolean tensor with 1 = real token")
    for name, tensor in tensors.items():
        if tensor.shape != mask.shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, the mask {tuple(mask.shape)}")
        if not tensor.is_floating_point():
            raise ValueError(f"{name} must be floating point, got {tensor.dtype}")
