"""Which process owns which trained parameter, and the flat buffers in which gradients and parameters travel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

BUCKET_ELEMENTS = 1 << 26
"""Tensors travel in flat buffers of at most so many elements (256 MiB in fp32), or of one tensor: summing gradients
does not double the memory of a large model."""


@dataclass(frozen=True)
class Bucket:
    """Parameters that travel together.

    Attributes:
        parameters: of one dtype.
        owner: the rank that updates them; None where every process updates every parameter.
    """

    parameters: tuple[nn.Parameter, ...]
    owner: int | None

    def flat(self, tensors: Sequence[Tensor | None]) -> Tensor:
        """One after the other in a buffer [elements] of their own; None stands for zeros.

        Args:
            tensors: one for each parameter, of its shape.
        """
        import torch

        pairs = zip(self.parameters, tensors, strict=True)
        return torch.cat([(torch.zeros_like(p) if t is None else t).detach().reshape(-1) for p, t in pairs])

    def gradients(self) -> Tensor:
        """The gradients in a buffer [elements]; an absent one counts as zero."""
        return self.flat([parameter.grad for parameter in self.parameters])

    def cut(self, flat: Tensor) -> list[Tensor]:
        """The parts of a buffer [elements], in the parameters' shapes; views of it."""
        parts = flat.split([parameter.numel() for parameter in self.parameters])
        return [part.view_as(parameter) for parameter, part in zip(self.parameters, parts, strict=True)]


def owners(sizes: Sequence[int], processes: int) -> list[int]:
    """The owner of each tensor: contiguous runs in rank order, whose largest is as small as can be.

    Args:
        sizes: elements of each tensor.
        processes: how many there are; some own nothing where there are fewer tensors.
    """
    low, high = max(sizes, default=0), sum(sizes)
    while low < high:
        middle = (low + high) // 2
        if _runs(sizes, middle)[-1] < processes:
            high = middle
        else:
            low = middle + 1
    return _runs(sizes, low) if sizes else []


def buckets(parameters: Sequence[nn.Parameter], owned_by: Sequence[int] | None) -> list[Bucket]:
    """Parameters in flat buffers, each of one dtype and one owner, the last parameters first.

    A backward pass reaches the last parameters first, so that their buffers can travel while it goes on.

    Args:
        parameters: all that are trained, in a fixed order.
        owned_by: the owner of each; None where nobody owns any.
    """
    made: list[Bucket] = []
    run: list[nn.Parameter] = []
    key: tuple[torch.dtype, int | None] | None = None
    for number in reversed(range(len(parameters))):
        parameter = parameters[number]
        now = (parameter.dtype, None if owned_by is None else owned_by[number])
        full = sum(p.numel() for p in run) + parameter.numel() > BUCKET_ELEMENTS
        if run and key is not None and (now != key or full):
            made.append(Bucket(tuple(run), key[1]))
            run = []
        run.append(parameter)
        key = now
    if run and key is not None:
        made.append(Bucket(tuple(run), key[1]))
    return made


def _runs(sizes: Sequence[int], most: int) -> list[int]:
    """The run of each tensor when a run is closed before it would have more than `most` elements."""
    run = filled = 0
    runs = []
    for size in sizes:
        if filled and filled + size > most:
            run, filled = run + 1, 0
        filled += size
        runs.append(run)
    return runs
