"""What a trainer needs of its sibling processes: sums, gathered lists, shared decisions and a share of the work.

Knows torch.distributed (through accelerate) and devices. Knows no model: gradients are summed once an optimizer step
over plain parameters, so no wrapper surrounds a model and one process does exactly what several do together.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from functools import cached_property
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from accelerate import PartialState
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from finegrained_rlhf.core.errors import ConsistencyError
from finegrained_rlhf.runtime import launcher
from finegrained_rlhf.runtime.precision import best_precision, processor_flags
from finegrained_rlhf.runtime.process_config import Precision, ProcessConfig, available_cores
from finegrained_rlhf.runtime.sharding.ownership import buckets

T = TypeVar("T")

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of glibc's malloc.h


class Pending:
    """A collective call on its way.

    Args:
        work: of torch.distributed.
        explained: opened while it is waited for; explains its errors.
    """

    def __init__(self, work: Any, explained: Callable[[], AbstractContextManager[None]]) -> None:
        self._work, self._explained = work, explained

    def wait(self) -> None:
        """Until its result can be used; on CUDA only the stream waits."""
        with self._explained():
            self._work.wait()


class Processes:
    """The processes of one run, one device each.

    Under `accelerate launch` every process builds one; in plain Python there is a single process. Collective calls
    must be made by all processes in the same order. Where CUDA is absent, several processes talk over gloo. A process
    ends when the launcher that started it has been killed.

    Attributes:
        rank: this process, from 0.
        count: number of processes.
        device: where this process computes.
        precision: "fp32" or "bf16".
        chosen: why that precision, where `ProcessConfig.precision` is "auto"; else empty.
        emulated: whether this is a CPU without the bf16 that was asked for, which takes several times as long as fp32.
        sharding: see `ProcessConfig`.
        groups: how many groups of processes each hold what is in shards.
        fused: whether models are fused (`ProcessConfig.fused`).
        compiled: whether their blocks are compiled (`ProcessConfig.compiled`).

    Args:
        config: how they compute; None for what needs nothing but their number.

    Raises:
        ConfigError: the launcher's file or flags ask for something else (`runtime/launcher.py`), or for more processes
            than it started.
        ConsistencyError: the other processes did not come in time.
    """

    sharding: str = "none"
    groups: int = 1
    precision: Precision
    chosen: str = ""
    emulated: bool = False

    def __init__(self, config: ProcessConfig | None = None) -> None:
        if config is not None:
            launcher.check_agreement(_settings(config.precision, config.sharding, config.shard_group))
        config = config or ProcessConfig()
        several = int(os.environ.get("WORLD_SIZE", "1")) > 1
        wants_cpu = os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes", "y", "on", "t")
        limit: dict[str, Any] = {"timeout": timedelta(seconds=config.timeout_s)} if several else {}
        try:
            state = PartialState(cpu=wants_cpu or (several and not torch.cuda.is_available()), **limit)
        except dist.DistStoreError as error:
            if "timed out" not in str(error).lower():
                raise
            raise ConsistencyError(
                f"the {os.environ['WORLD_SIZE']} processes of this run did not meet within {config.timeout_s:g} s "
                f"({str(error).splitlines()[0]}); where they only need longer, raise processes.timeout_s"
            ) from None
        self.rank: int = state.process_index
        self.count: int = state.num_processes
        launcher.check_process_count(self.count)
        self.groups = config.groups(self.count)
        launcher.end_with_launcher()
        self.device: torch.device = state.device
        self.sharding, self._timeout = config.sharding, config.timeout_s
        best, why = best_precision(self.device, processor_flags())
        self.emulated = config.precision == "bf16" != best and self.device.type == "cpu"
        if config.precision == "auto":
            self.precision, self.chosen = best, why
            if self.any(self.precision == "fp32") and self.precision == "bf16":
                self.precision, self.chosen = "fp32", "another process has no bf16"
        else:
            self.precision = config.precision
        in_bf16_on_cuda = self.precision == "bf16" and self.device.type == "cuda"
        self.fused: bool = in_bf16_on_cuda if config.fused is None else config.fused
        self.compiled: bool = config.compiled
        threads = config.threads
        if threads is None and self.count > 1:
            local = int(os.environ.get("LOCAL_WORLD_SIZE", str(self.count)))
            threads = max(1, available_cores() // local)
        if threads is not None:
            torch.set_num_threads(threads)
        if self.device.type == "cpu":
            keep_freed_memory()
        torch.backends.cuda.enable_cudnn_sdp(config.cudnn_attention)

    @property
    def is_main(self) -> bool:
        """True in the process that writes files and prints."""
        return self.rank == 0

    @property
    def description(self) -> str:
        """How many processes compute where and how, and what of the launcher's settings that follows, on one line."""
        several = f"{self.count} processes, each" if self.count > 1 else "1 process"
        device = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else self.device.type.upper()
        group = self.count // self.groups if self.groups > 1 else None
        settings = _settings(self.precision, self.sharding, group)
        sharding = self.sharding if group is None else f"{self.sharding} in groups of {group}"
        return f"{several} on {device}, {self.computed}, sharding {sharding}{launcher.explained(settings)}"

    @property
    def computed(self) -> str:
        """The precision, with why it was chosen, or that it is slow here."""
        if self.emulated:
            return f"{self.precision} (slow: this CPU has none; processes.precision=auto takes fp32)"
        return f"{self.precision} (auto: {self.chosen})" if self.chosen else self.precision

    @property
    def loading_device(self) -> torch.device:
        """Where models are loaded: on the CPU where their weights come to their device in shards."""
        return torch.device("cpu") if self.sharding == "full" and self.count > 1 else self.device

    @cached_property
    def mesh(self) -> DeviceMesh:
        """The processes, or their groups and the processes of each; all must ask for it together the first time."""
        if self.groups == 1:
            return init_device_mesh(self.device.type, (self.count,))
        return init_device_mesh(
            self.device.type, (self.groups, self.count // self.groups), mesh_dim_names=("groups", "rows")
        )

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """One process of a machine after the other, where models are loaded whole and keep their rows alone.

        So a machine's memory holds one whole model at a time, however many processes it has. No collective call may be
        made inside. Where models come to their device whole (`sharding`), all processes load at once.
        """
        if self.sharding != "full" or self.count == 1:
            yield
            return
        _ = self.mesh
        here, turn = int(os.environ.get("LOCAL_WORLD_SIZE", self.count)), int(os.environ.get("LOCAL_RANK", self.rank))
        most = max(self.gather_objects([here]))
        for _before in range(turn):
            self.barrier()
        yield
        for _after in range(most - turn):
            self.barrier()

    def autocast(self) -> AbstractContextManager[Any]:
        """The context that forward passes run in: bf16 autocast, or nothing in fp32."""
        if self.precision == "bf16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()

    def share(self, items: int) -> range:
        """The contiguous part of range(items) that this process works on.

        The shares of all processes are disjoint and cover everything; they differ by at most one item and may be empty.
        """
        base, extra = divmod(items, self.count)
        start = self.rank * base + min(self.rank, extra)
        return range(start, start + base + (self.rank < extra))

    def sum_(self, tensor: Tensor) -> Tensor:
        """Sum `tensor` over all processes, in place; every process gets the same bits. Returns the tensor."""
        if self.count > 1:
            with self._in_time():
                if self._backend_takes(tensor):
                    dist.all_reduce(tensor)
                else:
                    moved = tensor.to(self.device)
                    dist.all_reduce(moved)
                    tensor.copy_(moved)
        return tensor

    def gather_objects(self, items: Sequence[T]) -> list[T]:
        """The items of all processes, in rank order; the processes may hold different numbers of them, or none."""
        if self.count == 1:
            return list(items)
        gathered: list[Any] = [None] * self.count
        with self._in_time():
            dist.all_gather_object(gathered, list(items))
        return [item for part in gathered for item in part]

    def broadcast_object(self, value: T) -> T:
        """The main process's `value`, in every process."""
        if self.count == 1:
            return value
        box: list[Any] = [value]
        with self._in_time():
            dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]

    def any(self, flag: bool) -> bool:
        """True everywhere when `flag` is true in some process."""
        return bool(self.sum_(torch.tensor([float(flag)], dtype=torch.float64)).item() > 0)

    def barrier(self) -> None:
        """Wait until every process is here."""
        if self.count > 1:
            self.sum_(torch.zeros(1, device=self.device))

    def all_reduce_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Sum the gradients of `parameters` over all processes; an absent gradient counts as zero and becomes one.

        The zeros are also made with a single process, so that an optimizer treats unused parameters alike either way.
        """
        parameters = list(parameters)
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        for bucket in buckets(parameters, None) if self.count > 1 else ():
            flat = bucket.gradients()
            self.start_sum(flat).wait()
            for parameter, part in zip(bucket.parameters, bucket.cut(flat), strict=True):
                assert parameter.grad is not None
                parameter.grad.copy_(part)

    def start_sum(self, tensor: Tensor) -> Pending:
        """Begin to sum a tensor of any shape on this process's device over all processes, in place."""
        return Pending(dist.all_reduce(tensor, async_op=True), self._in_time)

    def start_reduce(self, tensor: Tensor, owner: int) -> Pending:
        """Begin to sum a tensor of any shape over processes, in place at its owner; elsewhere it is worthless then."""
        return Pending(dist.reduce(tensor, dst=owner, async_op=True), self._in_time)

    def start_broadcast(self, tensor: Tensor, owner: int) -> Pending:
        """Begin to send the owner's tensor, of any shape, to all processes, in place."""
        return Pending(dist.broadcast(tensor, src=owner, async_op=True), self._in_time)

    def close(self) -> None:
        """Leave the process group; nothing happens in a single process."""
        if self.count > 1 and dist.is_initialized():
            dist.destroy_process_group()

    @contextmanager
    def _in_time(self) -> Iterator[None]:
        """Say in one line that another process did not come in time; on CUDA, NCCL ends the process by itself."""
        try:
            yield
        except RuntimeError as error:
            if "timed out" not in str(error).lower():
                raise
            raise ConsistencyError(
                f"another process did not answer within {self._timeout:g} s: it hangs or has failed, see its messages; "
                "where it only needs longer, raise processes.timeout_s"
            ) from None

    def _backend_takes(self, tensor: Tensor) -> bool:
        return dist.get_backend() != "nccl" or tensor.is_cuda


def _settings(precision: str, sharding: str, shard_group: int | None) -> dict[str, Any]:
    """What a launcher may ask for too, by our keys."""
    values = {"precision": precision, "sharding": sharding, "shard_group": shard_group}
    return {f"processes.{name}": value for name, value in values.items()}


def keep_freed_memory() -> None:
    """Let glibc keep what this process frees for what it allocates next; no effect with another C library.

    Otherwise every large tensor (logits, the gradient of a vocabulary) is given back to the system and comes again as
    new pages that the kernel clears first. What a process holds then stays at its peak until it ends. An environment
    that sets up malloc itself (`MALLOC_…`, `GLIBC_TUNABLES`) is left alone. Measured in docs/benchmarks.md ("Memory").
    """
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return
    if hasattr(os, "confstr_names") and "CS_GNU_LIBC_VERSION" in os.confstr_names:
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, -1)  # never
