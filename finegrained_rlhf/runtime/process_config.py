"""How the processes of a run compute: a configuration, read without torch."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

from finegrained_rlhf.core.errors import ConfigError

SHARDING = ("none", "optimizer", "gradients", "full")
"""What processes share out among them (`runtime/sharding/`)."""


@dataclass(frozen=True)
class ProcessConfig:
    """How processes compute.

    Attributes:
        precision: "fp32", or "bf16" for bf16 autocast over fp32 weights.
        threads: CPU threads a process; None shares the cores of this machine evenly (a single process keeps torch's
            own choice, which honours OMP_NUM_THREADS).
        timeout_s: how long a process waits for the others before the run ends, in seconds. It must cover what one does
            alone: the main process makes what a run prepares, and writes the exported model.
        cudnn_attention: whether `scaled_dot_product_attention` may use cuDNN on CUDA. torch prefers it on Hopper GPUs,
            where it makes a plan for every new shape (40 to 70 ms each are reported; lengths change in every step), and
            its masked backward pass has given NaN (pytorch#196678).
        sharding: what the processes share out among them instead of each having all of it: `none`; `optimizer`, the
            optimizer's moments; `gradients`, the gradients too; `full`, the weights of the models' layers too (FSDP2).
    """

    precision: str = "fp32"
    threads: int | None = None
    timeout_s: float = 1800.0
    cudnn_attention: bool = False
    sharding: str = "none"

    def __post_init__(self) -> None:
        if self.precision not in ("fp32", "bf16"):
            raise ConfigError(f"precision: expected fp32 or bf16, got {self.precision!r}")
        if self.threads is not None and self.threads < 1:
            raise ConfigError(f"threads: expected null or at least 1, got {self.threads}")
        if not 0 < self.timeout_s < math.inf:
            raise ConfigError(f"timeout_s: expected a number of seconds above 0, got {self.timeout_s}")
        if self.sharding not in SHARDING:
            raise ConfigError(f"sharding: expected one of {', '.join(SHARDING)}, got {self.sharding!r}")


def available_cores() -> int:
    """CPU cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1
