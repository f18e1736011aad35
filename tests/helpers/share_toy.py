"""One process of several, whose sums a test makes by hand."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from finegrained_rlhf.runtime.processes import Processes


class Share(Processes):
    """One of several processes whose sums are made by hand."""

    def __init__(self, rank: int, count: int) -> None:
        super().__init__()
        self.rank, self.count = rank, count

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def all_reduce_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        self.gradients = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in parameters]
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
