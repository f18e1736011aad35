"""What of the trained parameters this process updates: all, those that it owns, and its rows of those in shards."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.runtime.sharding.exchange import exchange_for
from finegrained_rlhf.runtime.sharding.shards import drop_gathered, is_copy, is_shard, part_here, rows_here


class OwnShare:
    """This process's share of an update.

    Args:
        named: all trained parameters, in the same order in every process.
        processes: of the run; None for this process alone.

    Attributes:
        parameters: what this process updates, by name: a parameter as it is, or the rows here of one in shards.
        is_all: whether that is everything.
        copied: names of parameters whose rows here are those of a process of the first group (`shard_group`), too.
        common: the parameters that every process holds whole, by name.
    """

    def __init__(self, named: Mapping[str, nn.Parameter], processes: Processes | None) -> None:
        self._named, self._processes = dict(named), processes
        self.common = {name: parameter for name, parameter in named.items() if not is_shard(parameter)}
        self._exchange = None if processes is None else exchange_for(list(self.common.values()), processes)
        ours = list(self.common.values()) if self._exchange is None else self._exchange.owned
        self._rows = {
            name: nn.Parameter(part_here(parameter))
            for name, parameter in named.items()
            if is_shard(parameter) and part_here(parameter).numel()
        }
        chosen = set(ours)
        self.parameters: dict[str, nn.Parameter] = {}
        for name, parameter in named.items():
            if parameter in chosen:
                self.parameters[name] = parameter
            elif name in self._rows:
                self.parameters[name] = self._rows[name]
        self.copied = {name for name in self._rows if is_copy(named[name])}
        shared_out = self._exchange is not None and self._exchange.shared_out
        self.is_all = not shared_out and len(self.common) == len(named)

    @property
    def rank(self) -> int:
        """Of this process."""
        return 0 if self._processes is None else self._processes.rank

    @property
    def count(self) -> int:
        """Of processes."""
        return 1 if self._processes is None else self._processes.count

    def rows(self, name: str) -> range | None:
        """The rows of a parameter that this process updates; None for all."""
        return rows_here(self._named[name])

    def sum_gradients(self) -> None:
        """Sum the gradients over processes; those in shards have been summed in the backward passes."""
        if self._exchange is not None:
            self._exchange.sum_gradients()

    def norm(self) -> Tensor:
        """Make all gradients of the share ready; the norm of all gradients together, wherever they are."""
        for name, own in self.parameters.items():
            gradient = self._named[name].grad
            if name in self._rows:
                own.grad = None if gradient is None else part_here(gradient)
            if own.grad is None:
                own.grad = torch.zeros_like(own)
        counted = [own.grad for name, own in self.parameters.items() if name not in self.copied]
        norm = nn.utils.get_total_norm([gradient for gradient in counted if gradient is not None])
        if self.is_all or self._processes is None:
            return norm
        return self._processes.sum_(norm.to(self._processes.device).double() ** 2).sqrt()

    def spread(self) -> None:
        """Give the other processes what this one has made of its share, and take theirs."""
        drop_gathered()
        if self._exchange is not None:
            self._exchange.spread()

    def drop_gradients(self) -> None:
        """Forget all gradients."""
        for parameter in (*self._named.values(), *self._rows.values()):
            parameter.grad = None
