"""Tensors of which every process holds some rows: the part here, the whole, and passes that use them.

The shards are torch's `DTensor`, cut along its first dimension over all processes, or over those of a group where each
group holds the whole (`ProcessConfig.shard_group`), as FSDP2 makes it. Everything works on ordinary tensors too, which
are their own part and their own whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard

T = TypeVar("T")
COMPUTED = "_computed"
"""A method of modules whose weights are in shards: calls a function as their forward pass."""
KEPT: WeakSet[Any] = WeakSet()
"""Modules in shards that keep what they have gathered until an update has been made."""


def computed(module: nn.Module, function: Callable[..., T], *arguments: Any) -> T:
    """`function(*arguments)` as a forward pass of `module`, whose shards are gathered for it and dropped behind it.

    Args:
        module: one that calls of functions stand for instead of its own `forward`; it need not be in shards.
        function: what is computed with its weights.
        arguments: of the function; none with a gradient, at which the weights' would be summed, and again at the end.
    """
    method = module.__dict__.get(COMPUTED)
    result: T = function(*arguments) if method is None else method(function, *arguments)
    return result


def is_shard(tensor: Tensor) -> bool:
    """Whether other processes hold the rest of a tensor of any shape."""
    return isinstance(tensor, DTensor)


def drop_gathered() -> None:
    """Drop what this process keeps of weights in shards; the next pass gathers them as they are then."""
    for module in KEPT:
        module.reshard()


def part_here(tensor: Tensor) -> Tensor:
    """The rows [r, …] that this process holds of [R, …], in the memory of `tensor`; there may be none."""
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor.detach()


def rows_here(tensor: Tensor) -> range | None:
    """Which rows of a tensor [R, …] those are; None of an ordinary tensor: all."""
    if not isinstance(tensor, DTensor):
        return None
    if tensor.placements not in ((Shard(0),), (Replicate(), Shard(0))):
        raise ValueError(f"expected a tensor in shards along its first dimension, got {tensor.placements}")
    total, mesh = tensor.shape[0], tensor.device_mesh
    each = -(-total // mesh.size(-1))  # as torch.chunk cuts
    start = min(mesh.get_local_rank(mesh.ndim - 1) * each, total)
    return range(start, min(start + each, total))


def is_copy(tensor: Tensor) -> bool:
    """Whether the rows here of a tensor [R, …] are those of a process of the first group too."""
    return isinstance(tensor, DTensor) and tensor.device_mesh.ndim == 2 and tensor.device_mesh.get_local_rank(0) > 0


def whole(tensor: Tensor) -> Tensor:
    """All rows [R, …], gathered from the processes that hold them, every one of which must call this."""
    return tensor.full_tensor().detach() if isinstance(tensor, DTensor) else tensor.detach()


@torch.no_grad()
def copy_into(target: Tensor, value: Tensor) -> None:
    """Copy `value` [R, …], a whole tensor, into `target` or into the part of it that is here."""
    rows = rows_here(target)
    part_here(target).copy_(value if rows is None else value[rows.start : rows.stop])
