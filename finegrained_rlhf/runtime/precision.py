"""What `processes.precision=auto` takes: bf16 where the hardware multiplies it, fp32 elsewhere."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from finegrained_rlhf.runtime.process_config import Precision

if TYPE_CHECKING:
    import torch

_INSTRUCTIONS = ("amx_bf16", "avx512_bf16")
_CAPABILITY = (8, 0)


def processor_flags(path: str = "/proc/cpuinfo") -> frozenset[str]:
    """What the first processor says that it can do; empty where the system has no such file."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), ()))


def best_precision(device: torch.device, flags: Collection[str]) -> tuple[Precision, str]:
    """The precision that a device is fast in, and why.

    Args:
        device: where a process computes.
        flags: of the processor, as `processor_flags` gives them; read for a CPU.
    """
    if device.type == "cuda":
        import torch

        capability = torch.cuda.get_device_capability(device)
        why = "compute capability {}.{}, bf16 from {}.{} on".format(*capability, *_CAPABILITY)
        return ("bf16" if capability >= _CAPABILITY else "fp32"), why
    present = [name for name in _INSTRUCTIONS if name in flags]
    if device.type == "cpu" and present:
        return "bf16", f"the processor has {' and '.join(present)}"
    return "fp32", f"no {' or '.join(_INSTRUCTIONS)} here"
