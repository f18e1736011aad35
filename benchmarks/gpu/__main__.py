"""All that only a GPU can show: the same numbers as on a CPU, kernels, seconds against limits, memory, a resume.

    python -m benchmarks.gpu out=DIR [part=PART[,PART]] [budget_s=540] [device=cuda] [small=false]

Every item is written into DIR when it ends; after `budget_s` seconds no other is begun, and the same command goes on
where it stopped. The last start writes `DIR/gpu_NAME.json` and `DIR/gpu_NAME.md`, NAME being the hardware's. The exit
status is 0; 1 where an item failed; 2 for a mistake on the command line; 3 where items are left.

Needs torch, transformers, accelerate, numpy and safetensors, and no network. `device=cpu small=true` shows in minutes
that everything runs.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as the package itself sets it

import torch

from benchmarks.command import read_arguments
from benchmarks.gpu.attention import attention_items
from benchmarks.gpu.equality import equality_items
from benchmarks.gpu.items import Item, Ledger, Setting, passed, run_items
from benchmarks.gpu.page import page
from benchmarks.gpu.steps import step_items
from benchmarks.gpu.training import training_items
from benchmarks.machine import describe_machine
from finegrained_rlhf.core.errors import ConfigError, FineGrainedError
from finegrained_rlhf.core.files import write_json, write_text
from finegrained_rlhf.models.quiet import quiet_transformers
from finegrained_rlhf.runtime.processes import ProcessConfig, Processes

KEYS = ("out", "part", "budget_s", "device", "small")
FAILED, LEFT = 1, 3


def all_items() -> list[Item]:
    """In the order in which they are measured: what must be right first, then what takes long."""
    return [*equality_items(), *attention_items(), *training_items(), *step_items()]


def chosen_items(parts: str | None) -> list[Item]:
    """Those of some parts, `a,b`; all where None.

    Raises:
        ConfigError: no such part.
    """
    items = all_items()
    known = list(dict.fromkeys(item.part for item in items))
    asked = known if parts is None else parts.split(",")
    for part in asked:
        if part not in known:
            raise ConfigError(f"part: expected some of {', '.join(known)}, got {part!r}")
    return [item for item in items if item.part in asked]


def main(arguments: Sequence[str], say: Callable[[str], None]) -> int:
    """Measure what is left; the exit status.

    Raises:
        ConfigError: a wrong argument, or no such device.
    """
    given = read_arguments(arguments, KEYS, needed=("out",))
    items, seconds = chosen_items(given.get("part")), _seconds(given)
    device, small = _device(given.get("device", "cuda")), _flag(given, "small")
    os.environ["ACCELERATE_USE_CPU"] = str(device.type == "cpu").lower()
    Processes(ProcessConfig())  # what it sets up for all of torch is what a run has
    machine = describe_machine(device, "bf16")
    out = Path(given["out"])
    ledger = Ledger(out, {"machine": machine, "small": small})
    with tempfile.TemporaryDirectory() as scratch, quiet_transformers():

        def setting(item: Item) -> Setting:
            directory = Path(scratch) / f"{item.part}.{item.name}"
            directory.mkdir()
            return Setting(device, small, directory, say)

        left = run_items(items, ledger, setting, seconds, say)
    results = [(item, ledger.read(item)) for item in chosen_items(None)]
    found = {f"{item.part}.{item.name}": result for item, result in results if result is not None}
    name = "gpu_" + re.sub(r"[^a-z0-9]+", "_", str(machine["gpu"] or "cpu").lower()).strip("_")
    write_json(out / f"{name}.json", {"machine": machine, "small": small, "items": found})
    write_text(out / f"{name}.md", page(machine, results))
    say(f"{out / name}.md")
    if left:
        say(f"{len(left)} of {len(items)} items are left: start the same command again")
        return LEFT
    parts = {item.part for item in items}
    return 0 if all(passed(result) for item, result in results if item.part in parts and result is not None) else FAILED


def _device(name: str) -> torch.device:
    if name not in ("cuda", "cpu"):
        raise ConfigError(f"device: expected cuda or cpu, got {name!r}")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device=cuda: torch sees no GPU here; device=cpu small=true shows that everything runs")
    return torch.device(name)


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
    sys.exit(status)
