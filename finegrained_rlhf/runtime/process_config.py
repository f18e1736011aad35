"""How the processes of a run compute: a configuration, read without torch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar, get_args

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import Gone, above, at_least, harmless

Precision = Literal["fp32", "bf16"]
T = TypeVar("T")
Sharding = Literal["none", "gradients", "full"]
SHARDING = get_args(Sharding)
"""What processes share out among them (`runtime/sharding/`)."""
_WITHOUT_OPTIMIZER = Gone("optimizer", "give gradients, which shares out the moments too")


@dataclass(frozen=True)
class ProcessConfig(Settings):
    """How processes compute.

    Attributes:
        precision: "fp32", or "bf16" for bf16 autocast over fp32 weights; "auto" takes bf16 where all processes have
            instructions for it (GPUs since compute capability 8.0, CPUs with AMX or AVX512-bf16), for the whole run.
        threads: CPU threads a process; None shares the cores of this machine evenly (a single process keeps torch's
            own choice, which honours OMP_NUM_THREADS).
        timeout_s: how long a process waits for the others before the run ends, in seconds. It must cover what one does
            alone: the main process makes what a run prepares, and writes the exported model.
        cudnn_attention: whether `scaled_dot_product_attention` may use cuDNN on CUDA. torch prefers it on Hopper GPUs,
            where it makes a plan for every new shape (40 to 70 ms each are reported; lengths change in every step), and
            its masked backward pass has given NaN (pytorch#196678).
        fused: whether models run in fewer operations: norms by torch's own function, and under bf16 weights that are
            rounded once they have changed instead of in every pass (`models/families/fused.py`); what bf16 rounds
            differs. None: on CUDA in bf16.
        compiled: whether torch compiles the blocks of PPO's models for scoring and update
            (`models/families/compiled.py`). A first step takes a minute or two longer; later runs find what was
            compiled in torch's cache.
        sharding: what the processes share out among them instead of each having all of it: `none`; `gradients`, the
            gradients and the optimizer's moments; `full`, the weights of the models' layers, embeddings and heads too.
        shard_group: how many processes of consecutive ranks hold what is in shards among them, as the GPUs of a node
            do; every group has them all, and sums of gradients go between groups (hybrid sharding, HSDP). None: all
            processes are one group.
    """

    precision: Literal["auto", "fp32", "bf16"] = "fp32"
    threads: Annotated[int | None, at_least(1), harmless] = None
    timeout_s: Annotated[float, above(0), harmless] = 1800.0
    cudnn_attention: Annotated[bool, harmless] = False
    fused: Annotated[bool | None, harmless] = None
    compiled: Annotated[bool, harmless] = False
    sharding: Annotated[Sharding, _WITHOUT_OPTIMIZER, harmless] = "none"
    shard_group: Annotated[int | None, at_least(2), harmless] = None

    def __post_init__(self) -> None:
        if self.shard_group is not None and self.sharding == "none":
            raise ConfigError("processes.shard_group: with processes.sharding=none nothing is in shards; expected null")

    def groups(self, count: int) -> int:
        """How many groups of processes each hold all that is in shards.

        Args:
            count: of processes.

        Raises:
            ConfigError: they cannot be put into groups of `shard_group`.
        """
        size = self.shard_group or count if count > 1 else 1
        if count % size:
            raise ConfigError(f"processes.shard_group: expected a divisor of the {count} processes, got {size}")
        return count // size


class OneProcess:
    """This process alone, for a job that shares no work; `runtime/processes.py` without torch."""

    count = 1
    is_main = True

    def broadcast_object(self, value: T) -> T:
        """The value."""
        return value

    def barrier(self) -> None:
        """Wait for nobody."""


def available_cores() -> int:
    """CPU cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1
