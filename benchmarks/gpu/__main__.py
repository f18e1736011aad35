"""All that only a GPU can show: seconds against limits, memory, the same numbers as on a CPU, kernels, a resume.

    python -m benchmarks.gpu out=DIR [part=PART[,PART]] [budget_s=540] [device=cuda] [small=false] [again=false]

    out       directory for gpu_NAME.json and gpu_NAME.md (NAME is the hardware's), both written anew after every item;
              where a lease empties its folder of results at each command, name one inside the checkout and copy
              gpu_NAME.* at the end
    part      some of steps, profile, plain, memory, equality, attention, training, update, resume, in any order, or
              single items (steps.t5); all by default. They are measured in this order: a short lease begins with
              `part=steps` (ours against limits: about 150 s on an H100), then `part=profile` (where the time goes)
    budget_s  after so many seconds the running item is stopped too, and is left; what it has measured is kept, marked
              as cut off, and the same command goes on from there and measures it again
    device    cuda or cpu
    small     true: little models and few repeats; `device=cpu small=true` shows in minutes that everything runs
    again     true: measure anew what failed

Needs torch, transformers, accelerate, numpy and safetensors, and no network. The exit status is 0; 1 where an item
failed; 2 for a mistake on the command line; 3 where items are left, cut off or not begun.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # this process must not open the device: it is forked
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as the package itself sets it

import torch

from benchmarks.command import read_arguments
from benchmarks.gpu.attention import attention_items
from benchmarks.gpu.equality import equality_items
from benchmarks.gpu.items import Item, Ledger, Result, Setting, Worker, passed, run_items
from benchmarks.gpu.page import page
from benchmarks.gpu.profiling import profile_items
from benchmarks.gpu.steps import plain_items, same_step_items, step_items
from benchmarks.gpu.training import memory_items, training_items
from benchmarks.machine import describe_machine
from finegrained_rlhf.core.errors import ConfigError, FineGrainedError
from finegrained_rlhf.core.files import write_text
from finegrained_rlhf.launch.children import ended_by_signals
from finegrained_rlhf.models.quiet import quiet_transformers
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.runtime.processes import Processes

KEYS = ("out", "part", "budget_s", "device", "small", "again")
FAILED, LEFT = 1, 3
PATIENCE = {"cuda": 1.0, "cpu": 10.0}
"""Factor of an item's own limit, which is one for a GPU."""


def all_items() -> list[Item]:
    """In the order in which they are measured: what a short lease must not lose first."""
    return [
        *step_items(),
        *profile_items(),
        *plain_items(),
        *memory_items(),
        *same_step_items(),
        *equality_items(),
        *attention_items(),
        *training_items(),
    ]


def chosen_items(parts: str | None) -> list[Item]:
    """Those of some parts or single ones, `a,b.c`; all where None.

    Raises:
        ConfigError: no such part or item.
    """
    items = all_items()
    known = list(dict.fromkeys(item.part for item in items))
    asked = known if parts is None else parts.split(",")
    for part in asked:
        if part not in known and part not in (item.key for item in items):
            raise ConfigError(f"part: expected some of {', '.join(known)}, or PART.ITEM, got {part!r}")
    return [item for item in items if item.part in asked or item.key in asked]


def main(arguments: Sequence[str], say: Callable[[str], None]) -> int:
    """Measure what is left; the exit status.

    Raises:
        ConfigError: a wrong argument, no such device, or `out` holds what another machine measured.
    """
    start = time.monotonic()
    if "--help" in arguments:
        print(__doc__)
        return 0
    given = read_arguments(arguments, KEYS, needed=("out",))
    items, seconds = chosen_items(given.get("part")), _seconds(given)
    small, again = _flag(given, "small"), _flag(given, "again")
    machine = _machine(given.get("device", "cuda"))
    device = torch.device(given.get("device", "cuda"))
    name = "gpu_" + re.sub(r"[^a-z0-9]+", "_", str(machine["gpu"] or "cpu").lower()).strip("_")
    summary = Path(given["out"]) / f"{name}.json"
    ledger, everything = Ledger(summary, {"machine": machine, "small": small}, again), all_items()

    def results() -> list[tuple[Item, Result | None]]:
        return [(item, ledger.read(item)) for item in everything]

    def written() -> None:
        write_text(summary.with_suffix(".md"), page(machine, results()))

    with ended_by_signals(), tempfile.TemporaryDirectory() as scratch, quiet_transformers():
        setting = Setting(device, small, Path(scratch), say)
        left_s = seconds - (time.monotonic() - start)
        left = run_items(items, ledger, setting, left_s, partial(_prepare, device), written, PATIENCE[device.type])
    if left:
        cut = sum("cut_off" in (ledger.read(item) or {}) for item in left)
        say(f"{len(left)} of {len(items)} items are left, {cut} of them cut off: start the same command again")
        return LEFT
    say(f"{summary}, {summary.with_suffix('.md').name}")
    return 0 if all(passed(ledger.read(item) or {}) for item in items) else FAILED


def _prepare(device: torch.device) -> None:
    """Let the process that measures compute as a run does, but for attention that is not compiled: that is an error."""
    os.environ["ACCELERATE_USE_CPU"] = str(device.type == "cpu").lower()
    Processes(ProcessConfig())  # what it sets up for all of torch is what a run has
    torch._dynamo.config.fail_on_recompile_limit_hit = True


def _machine(name: str) -> dict[str, Any]:
    """What the device is, from a process of its own.

    Raises:
        ConfigError: no such device.
    """
    if name not in ("cuda", "cpu"):
        raise ConfigError(f"device: expected cuda or cpu, got {name!r}")

    def describe(setting: Setting) -> Result:
        if name == "cuda" and not torch.cuda.is_available():
            return {}
        _prepare(setting.device)
        return describe_machine(setting.device, "bf16")

    with tempfile.TemporaryDirectory() as scratch:
        setting = Setting(torch.device(name), True, Path(scratch), print)
        worker = Worker([Item("machine", name, describe)], setting, lambda: None)
        try:
            found = worker.measure(0, 120.0)
        finally:
            worker.end()
    if found is None or "error" in found:
        raise ConfigError(f"device={name}: it does not answer ({(found or {}).get('error', 'for two minutes')})")
    if not found:
        raise ConfigError("device=cuda: torch sees no GPU here; device=cpu small=true shows that everything runs")
    return found


def _flag(given: dict[str, str], name: str) -> bool:
    value: Any = given.get(name, "false")
    if value not in ("true", "false"):
        raise ConfigError(f"{name}: expected true or false, got {value!r}")
    return bool(value == "true")


def _seconds(given: dict[str, str]) -> float:
    value = given.get("budget_s", "540")
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not seconds > 0:
        raise ConfigError(f"budget_s: expected a number of seconds above 0, got {value!r}")
    return seconds


if __name__ == "__main__":
    try:
        status = main(sys.argv[1:], lambda line: print(line, file=sys.stderr, flush=True))
    except FineGrainedError as error:
        print(f"error: {error}", file=sys.stderr)
        status = 2
    except KeyboardInterrupt:  # or another signal that ends a command
        print("ended by a signal; what was measured is kept: start the same command again", file=sys.stderr)
        status = LEFT
    sys.exit(status)
