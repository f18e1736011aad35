"""What the command measures, one item after the other, and what was measured already.

An item writes its result when it ends, so that the command, started again, goes on with the next one. Knows no model
and no device.
"""

from __future__ import annotations

import math
import shutil
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import wait
from finegrained_rlhf.core.files import read_json, write_json

Result = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """Where and how large.

    Attributes:
        device: that is measured.
        small: little models and few repeats, to see that everything runs; the times then mean little.
        scratch: an empty directory for what an item writes meanwhile.
        say: gets a line for everything that is done.
    """

    device: torch.device
    small: bool
    scratch: Path
    say: Callable[[str], None]


@dataclass(frozen=True)
class Item:
    """One measurement.

    Attributes:
        part: that it belongs to.
        name: unique in its part.
        measure: gives a result that JSON can hold. Its key `equal`, if any, has entries with `ok`; `targets` likewise.
    """

    part: str
    name: str
    measure: Callable[[Setting], Result]


class Ledger:
    """The results of a directory, a file an item.

    Args:
        directory: `items/PART.NAME.json` lie in it.
        conditions: machine and sizes; results that were measured under others are not taken for these.
    """

    def __init__(self, directory: Path, conditions: Mapping[str, Any]) -> None:
        self._directory, self._conditions = directory / "items", dict(conditions)

    def path(self, item: Item) -> Path:
        """The file of an item."""
        return self._directory / f"{item.part}.{item.name}.json"

    def read(self, item: Item) -> Result | None:
        """What was measured; None where nothing was, or elsewhere."""
        path = self.path(item)
        if not path.is_file():
            return None
        found = read_json(path)
        return found if found.get("measured_under") == self._conditions else None

    def write(self, item: Item, result: Result) -> None:
        """Keep a result. Numbers that are not finite are kept as words."""
        self._directory.mkdir(parents=True, exist_ok=True)
        write_json(self.path(item), {**_finite(result), "measured_under": self._conditions})


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def run_items(
    items: Sequence[Item],
    ledger: Ledger,
    setting: Callable[[Item], Setting],
    budget: float,
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> list[Item]:
    """Measure what is not measured yet, until the budget is spent; the items that are left.

    An item that fails, or whose process ends with it, is kept with its error, and the next one runs: remove its file to
    try it again.

    Args:
        items: in order.
        ledger: of what was measured.
        setting: of each item.
        budget: seconds after which no item is begun.
        say: gets a line for everything that is done.
        clock: in seconds.
    """
    start = clock()
    waiting = [item for item in items if ledger.read(item) is None]
    for number, item in enumerate(waiting):
        if clock() - start >= budget:
            return waiting[number:]
        say(f"{item.part}: {item.name}")
        began, here = clock(), setting(item)
        ledger.write(item, {"error": "the process ended while this was measured", "seconds": 0.0})
        try:
            result = item.measure(here)
        except Exception as error:  # whatever a device may do; what else was measured must not be lost
            traceback.print_exc()
            result = {"error": f"{type(error).__name__}: {error}"}
        ledger.write(item, {**result, "seconds": clock() - began})
        shutil.rmtree(here.scratch, ignore_errors=True)
        if "error" in result and not _works(here.device):
            say("the device cannot be used any more in this process: start the command again")
            return waiting[number + 1 :]
    return []


def _works(device: torch.device) -> bool:
    """Whether the device still answers: after some errors it does not, until the process ends."""
    try:
        wait(device)
    except Exception:
        return False
    return True


def passed(result: Mapping[str, Any]) -> bool:
    """Whether an item ended without an error, and all that it compared is as it should be."""
    checks = [*result.get("equal", {}).values(), *result.get("targets", {}).values()]
    return "error" not in result and all(check["ok"] for check in checks)
