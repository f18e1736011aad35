"""The machine: what it is, how fast it copies and multiplies, and how much memory a stretch of code takes.

Knows torch devices and, for the memory of a process, Linux's `/proc`. Knows no model.
"""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from finegrained_rlhf.runtime.process_config import available_cores

Clock = Callable[[], float]
TORCH_HAS_CUDNN_ATTENTION = torch.backends.cuda.cudnn_sdp_enabled()
"""torch's own choice, before a process of ours makes one (`processes.cudnn_attention`)."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Rates:
    """What the machine was measured to do.

    Attributes:
        copy: bytes a second, read and written bytes both counted, of a copy that no cache holds.
        matmul: floating-point operations a second of a square matrix product in the run's dtype.
    """

    copy: float
    matmul: float


@contextmanager
def busy_neighbour() -> Iterator[None]:
    """Another process that keeps one core busy while the block runs."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        try:
            yield
        finally:
            other.kill()


@contextmanager
def cudnn_attention(allowed: bool = TORCH_HAS_CUDNN_ATTENTION) -> Iterator[None]:
    """With or without cuDNN's kernels for `scaled_dot_product_attention`; as torch has it where nobody says."""
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(allowed)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def wait(device: torch.device) -> None:
    """Until all work of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _fastest(work: Callable[[], Tensor], device: torch.device, repeats: int, clock: Clock) -> float:
    """Seconds of the fastest of `repeats` calls, after two that are not counted."""
    best = float("inf")
    for call in range(repeats + 2):
        wait(device)
        start = clock()
        work()
        wait(device)
        if call >= 2:
            best = min(best, clock() - start)
    return best


@torch.no_grad()
def measure_rates(device: torch.device, precision: str, small: bool = False, clock: Clock = time.perf_counter) -> Rates:
    """Copy bandwidth and matrix-product rate of this machine, the best of ten.

    Args:
        device: which to measure.
        precision: `fp32` or `bf16`, the dtype of the product.
        small: little arrays, for tests; the numbers then mean little.
        clock: in seconds; `time.process_time` gives rates a second of one core, which other programs disturb less.
    """
    cuda = device.type == "cuda"
    elements = 1 << (16 if small else 30 if cuda else 26)  # fp32: 4 GiB on a GPU, 256 MiB on a CPU
    source = torch.ones(elements, device=device)
    target = torch.empty_like(source)
    copied = _fastest(lambda: target.copy_(source), device, 10, clock)
    side = 64 if small else 8192 if cuda else 2048
    left, right = (torch.randn(side, side, device=device).to(DTYPES[precision]) for _ in range(2))
    multiplied = _fastest(lambda: left @ right, device, 10, clock)
    return Rates(copy=2 * 4 * elements / copied, matmul=2 * side**3 / multiplied)


def describe_machine(device: torch.device, precision: str) -> dict[str, Any]:
    """Hardware and versions; names no host."""
    return {
        "cpu": _cpu_model(),
        "cores": available_cores(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "cuda": torch.version.cuda if device.type == "cuda" else None,
        "precision": precision,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _status(field: str) -> int | None:
    """A size in bytes from `/proc/self/status`; None where there is none."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), None)


def memory_at_rest(device: torch.device) -> int | None:
    """Bytes held now: allocated tensors on a GPU, resident memory of the process on a CPU (None off Linux).

    Freed memory is first given back to the system, so that what rests is what is held.
    """
    gc.collect()
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    if os.name == "posix" and Path("/proc/self/status").exists():
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
    return _status("VmRSS")


@dataclass
class Peak:
    """Result of `peak_memory`, filled when its block ends.

    Attributes:
        rise: bytes by which memory rose above what was at rest when the block began; None where it is not known.
    """

    rise: int | None = None


@contextmanager
def peak_memory(device: torch.device) -> Iterator[Peak]:
    """Measure how far a block's memory rises.

    A GPU's allocator counts exactly. On Linux the high-water mark of resident memory is reset before the block.
    """
    peak, before = Peak(), memory_at_rest(device)
    known = before is not None
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        try:
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        except OSError:
            known = False
    yield peak
    highest = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else _status("VmHWM")
    if known and before is not None and highest is not None:
        peak.rise = max(0, highest - before)
