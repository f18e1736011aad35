"""How gradients of whole tensors are summed over processes and updated parameters come back, by `processes.sharding`.

- `none`: every process has all gradients and all moments; gradients are summed once an update.
- `gradients` and `full`: every parameter has one owner, which alone has its moments and updates it. Gradients are
  summed at the owner in every backward pass, while it goes on, and dropped elsewhere; the owner sends the updated
  parameter to the others. A process holds the gradients of what it owns, and a few buffers that travel.

What FSDP2 has in shards (`models/weights/sharded.py`) is summed by it and not here. Processes may make different
numbers of backward passes, or none, before an update, which FSDP2 does not allow. Source of the idea: Rajbhandari et
al., 2020, ZeRO (stages 1 and 2), here with whole tensors, so that an optimizer need not be elementwise.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from finegrained_rlhf.runtime.processes import Pending, Processes
from finegrained_rlhf.runtime.sharding.ownership import Bucket, buckets, owners

IN_FLIGHT = 2
"""Buffers that travel at once."""


class Exchange:
    """Every process updates every parameter (`none`).

    Args:
        parameters: all that are trained, in the same order in every process.
        processes: of the run.

    Attributes:
        owned: those that this process updates.
        shared_out: whether others update the rest.
    """

    shared_out = False

    def __init__(self, parameters: Sequence[nn.Parameter], processes: Processes) -> None:
        self.parameters, self.processes = list(parameters), processes
        self.owned = self.parameters

    def sum_gradients(self) -> None:
        """Give every owned parameter the sum of its gradients over all processes; an absent one counts as zero."""
        self.processes.all_reduce_gradients(self.parameters)

    def spread(self) -> None:
        """Give every process what the owners have made of the parameters."""


class OwnedExchange(Exchange):
    """Every parameter has one owner, which alone has its moments, its gradients, and updates it.

    A backward pass is a round. In a round every process hands in every bucket, in one order; a process without a
    backward pass of its own hands in zeros. Each round begins with a sum of flags, and the rounds of an update end with
    the one in which no process had a backward pass. So between the first backward pass of an update and
    `sum_gradients` no other collective call may be made. A bucket waits for those before it: where a parameter that
    comes last gets its gradient late (BART's norm of the embeddings), more gradients are held meanwhile.
    """

    shared_out = True

    def __init__(self, parameters: Sequence[nn.Parameter], processes: Processes) -> None:
        super().__init__(parameters, processes)
        owned_by = owners([parameter.numel() for parameter in self.parameters], processes.count)
        self._buckets = buckets(self.parameters, owned_by)
        pairs = zip(self.parameters, owned_by, strict=True)
        self.owned = [parameter for parameter, owner in pairs if owner == processes.rank]
        self._travelling: deque[tuple[Pending, Callable[[], None]]] = deque()
        self._bucket_of = {p: number for number, bucket in enumerate(self._buckets) for p in bucket.parameters}
        self._sums: dict[nn.Parameter, Tensor] = {}
        self._missing: list[int] = []
        self._next = 0
        for parameter in self.parameters:
            parameter.register_post_accumulate_grad_hook(self._ready)

    def sum_gradients(self) -> None:
        """Take part in the others' rounds until none is left; see `Exchange.sum_gradients`."""
        while self._flag(False):
            for bucket in self._buckets:
                self._launch(bucket)
            self._arrive()
        for parameter in self.owned:
            total = self._sums.pop(parameter, None)
            parameter.grad = torch.zeros_like(parameter) if total is None else total

    @torch.no_grad()
    def spread(self) -> None:
        """See `Exchange.spread`."""
        for bucket in self._buckets:
            flat = bucket.flat(bucket.parameters)
            is_owner = bucket.owner == self.processes.rank
            take = _nothing if is_owner else partial(_copy_from, bucket, flat)
            self._send(self.processes.start_broadcast(flat, bucket.owner or 0), take)
        self._arrive()

    def _flag(self, working: bool) -> bool:
        """Whether a process has a backward pass in this round; always true where this one has (nobody waits then)."""
        flag = torch.full((1,), float(working), device=self.processes.device)
        pending = self.processes.start_sum(flag)
        if working:
            self._send(pending, _nothing)
            return True
        pending.wait()
        return bool(flag.item() > 0)

    def _ready(self, parameter: Tensor) -> None:
        """A gradient is complete: hand in the next buckets of which nothing is missing."""
        if not self._missing:
            self._missing = [len(bucket.parameters) for bucket in self._buckets]
            self._next = 0
            engine: Any = torch.autograd.Variable._execution_engine  # type: ignore[attr-defined]
            engine.queue_callback(self._end_round)
            self._flag(True)
        self._missing[self._bucket_of[parameter]] -= 1  # type: ignore[index]
        while self._next < len(self._buckets) and self._missing[self._next] == 0:
            self._launch(self._buckets[self._next])
            self._next += 1

    def _end_round(self) -> None:
        """After a backward pass: hand in the rest, which holds parameters that the loss does not depend on."""
        for bucket in self._buckets[self._next :]:
            self._launch(bucket)
        self._missing = []
        self._arrive()

    def _launch(self, bucket: Bucket) -> None:
        """Send the gradients of a bucket to its owner; the parameters have none afterwards."""
        flat = bucket.gradients()
        for parameter in bucket.parameters:
            parameter.grad = None
        is_owner = bucket.owner == self.processes.rank
        keep = partial(self._keep, bucket, flat) if is_owner else _nothing
        self._send(self.processes.start_reduce(flat, bucket.owner or 0), keep)

    def _keep(self, bucket: Bucket, flat: Tensor) -> None:
        for parameter, part in zip(bucket.parameters, bucket.cut(flat), strict=True):
            if parameter in self._sums:
                self._sums[parameter] += part
            else:
                self._sums[parameter] = part

    def _send(self, pending: Pending, arrived: Callable[[], None]) -> None:
        self._travelling.append((pending, arrived))
        if len(self._travelling) > IN_FLIGHT:
            self._arrive(IN_FLIGHT)

    def _arrive(self, left: int = 0) -> None:
        """Wait until so many buffers are left on their way."""
        while len(self._travelling) > left:
            pending, arrived = self._travelling.popleft()
            pending.wait()
            arrived()


def exchange_for(parameters: Sequence[nn.Parameter], processes: Processes) -> Exchange:
    """The exchange that `processes.sharding` asks for; a single process has nothing to share out."""
    shared_out = processes.count > 1 and processes.sharding != "none"
    return (OwnedExchange if shared_out else Exchange)(parameters, processes)


def _copy_from(bucket: Bucket, flat: Tensor) -> None:
    for parameter, value in zip(bucket.parameters, bucket.cut(flat), strict=True):
        parameter.copy_(value)


def _nothing() -> None:
    pass
