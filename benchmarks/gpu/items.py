"""What the command measures, one item after the other, and what was measured already.

Items are measured by a process of their own, forked before anything has asked the device: one that fails, ends with its
process or takes too long costs itself alone. Every result is kept when it comes, and what a long item hands over while
it runs, so that the command, started again, goes on with the next one and nothing measured is lost. Knows no model.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import torch

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import read_json, write_json

Result = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """Where and how large.

    Attributes:
        device: that is measured.
        small: little models and few repeats, to see that everything runs; the times then mean little.
        scratch: an empty directory for what an item writes meanwhile; it is removed afterwards.
        say: gets a line for everything that is done.
        measured: results that there are already, by the items' keys.
        keep: gets what an item has measured so far; it lasts whatever ends the item.
    """

    device: torch.device
    small: bool
    scratch: Path
    say: Callable[[str], None]
    measured: Mapping[str, Result] = field(default_factory=dict)
    keep: Callable[[Result], None] = lambda result: None


@dataclass(frozen=True)
class Item:
    """One measurement.

    Attributes:
        part: that it belongs to.
        name: unique in its part.
        measure: gives a result that JSON can hold. Its key `equal`, if any, has entries with `ok`; `targets` likewise.
        limit_s: seconds after which it is given up.
    """

    part: str
    name: str
    measure: Callable[[Setting], Result]
    limit_s: float = 240.0

    @property
    def key(self) -> str:
        """`PART.NAME`."""
        return f"{self.part}.{self.name}"


class Ledger:
    """The results of one machine in one JSON file, written anew with each of them.

    What was kept of an item that was cut off has a key `cut_off`: how many times the item had handed over what it had.

    Args:
        path: of the file; what it holds already is gone on with.
        conditions: machine and sizes.
        again: measure anew what failed. Until it is, the file holds what there was.

    Raises:
        ConfigError: the file holds what was measured under other conditions.
    """

    def __init__(self, path: Path, conditions: Mapping[str, Any], again: bool = False) -> None:
        self._path, self._conditions = path, dict(conditions)
        self._results: dict[str, Result] = {}
        if path.is_file():
            kept = read_json(path)
            self._results = kept.pop("items")
            for name, value in self._conditions.items():
                if kept.get(name) != value:
                    raise ConfigError(
                        f"{path}: measured with {name} {kept.get(name)}, this is {value}: name another out"
                    )
        self._again = {key for key, result in self._results.items() if again and not passed(result)}

    @property
    def measured(self) -> dict[str, Result]:
        """Results of the items that need not be measured again, by key."""
        left = {key for key, result in self._results.items() if "cut_off" in result} | self._again
        return {key: result for key, result in self._results.items() if key not in left}

    def read(self, item: Item) -> Result | None:
        """What was measured of an item, all or a part; None where nothing was."""
        return self._results.get(item.key)

    def write(self, item: Item, result: Result) -> None:
        """Keep a result, an error with what was measured until then. Numbers that are not finite become words."""
        before = self._results.get(item.key, {})
        if "error" in result and "cut_off" in before:
            result = {**{name: value for name, value in before.items() if name != "cut_off"}, **result}
        self._again.discard(item.key)
        self._put(item, result)

    def keep(self, item: Item, result: Result, times: int) -> None:
        """Keep what a running item has handed over so many times; never in place of more."""
        before = self._results.get(item.key, {"cut_off": 0})
        if times >= before.get("cut_off", 0 if "error" in before else math.inf):
            self._put(item, {**result, "cut_off": times})

    def _put(self, item: Item, result: Result) -> None:
        self._results[item.key] = _finite(result)
        write_json(self._path, {**self._conditions, "items": self._results})


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


class Worker:
    """A process that measures items, one at a time. It ends with this process, however that ends.

    Args:
        items: any of which it can be asked for; it knows them by having been forked.
        setting: of all items; each gets a directory of its own in `scratch`, which is removed when it ends.
        prepare: called in the process before anything else.
    """

    def __init__(self, items: Sequence[Item], setting: Setting, prepare: Callable[[], None]) -> None:
        context = multiprocessing.get_context("fork")
        self._pipe, far = context.Pipe()
        self._process = context.Process(target=_serve, args=(far, self._pipe, items, setting, prepare))
        self._process.start()
        far.close()

    def measure(
        self,
        number: int,
        seconds: float,
        measured: Mapping[str, Result] | None = None,
        keep: Callable[[Result, int], None] = lambda part, times: None,
    ) -> Result | None:
        """The result of one item, or its error; None where it took longer than so many seconds.

        After an error and after None the process has ended.

        Args:
            number: of the item.
            seconds: at most.
            measured: for its setting.
            keep: called with what the item hands over while it runs, and how many times it has done so.
        """
        deadline = time.monotonic() + seconds
        result: Result = {}
        self._pipe.send((number, measured or {}))
        try:
            for times in count(1):
                if not self._pipe.poll(max(deadline - time.monotonic(), 0.0)):
                    self.end()
                    return None
                whole, result = self._pipe.recv()
                if whole:
                    break
                keep(result, times)
        except (EOFError, OSError):  # between two results, or amid one
            self._process.join()
            code = self._process.exitcode or 0
            how = signal.Signals(-code).name if code < 0 else f"status {code}"
            result = {"error": f"the process ended ({how}) while this was measured"}
        if "error" in result:
            self.end()
        return result

    def end(self) -> None:
        """Kill the process with all that it started."""
        with suppress(ProcessLookupError):
            if self._process.pid is not None:
                os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(ProcessLookupError):  # it was killed before it led a group
            self._process.kill()
        self._process.join()
        self._pipe.close()


def _serve(pipe: Any, far: Any, items: Sequence[Item], setting: Setting, prepare: Callable[[], None]) -> None:
    """Measure what is asked for until an item fails: then the device may be lost to this process."""
    os.setsid()
    far.close()
    threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()
    prepare()
    with suppress(EOFError, BrokenPipeError):
        while True:
            number, measured = pipe.recv()
            item = items[number]
            with tempfile.TemporaryDirectory(dir=setting.scratch, ignore_cleanup_errors=True) as scratch:
                own = replace(
                    setting, scratch=Path(scratch), measured=measured, keep=lambda part: pipe.send((False, part))
                )
                try:
                    result = item.measure(own)
                except Exception as error:  # whatever a device may do; what else is measured must not be lost
                    traceback.print_exc()
                    result = {"error": f"{type(error).__name__}: {error}"}
            pipe.send((True, result))
            if "error" in result:
                return
            if setting.device.type == "cuda":
                torch.cuda.empty_cache()


def _end_with(parent: Any) -> None:
    """End the group of this process when the command has ended, even by `kill -9`: nobody would read the result."""
    parent.join()
    os.killpg(0, signal.SIGKILL)


def run_items(
    items: Sequence[Item],
    ledger: Ledger,
    setting: Setting,
    budget: float,
    prepare: Callable[[], None] = lambda: None,
    written: Callable[[], None] = lambda: None,
    patience: float = 1.0,
) -> list[Item]:
    """Measure what is not measured yet, until the budget is spent; the items that are left.

    An item that fails, ends its process or takes longer than its own limit is kept with its error, and the next one
    runs. One that the budget cuts off is left; what it handed over until then is kept.

    Args:
        items: in order.
        ledger: of what was measured.
        setting: of all items; `scratch` is a directory in which each gets one of its own.
        budget: seconds after which nothing runs any more.
        prepare: called in every process that measures, before its first item.
        written: called whenever something was kept.
        patience: factor of the items' own limits.
    """
    start = time.monotonic()
    waiting = [item for item in items if item.key not in ledger.measured]
    worker: Worker | None = None
    try:
        for number, item in enumerate(waiting):
            left, limit = budget - (time.monotonic() - start), patience * item.limit_s
            if left <= 0:
                return waiting[number:]
            setting.say(f"{item.part}: {item.name}")
            began = time.monotonic()
            worker = worker or Worker(waiting, setting, prepare)
            keep = partial(_keep, ledger, item, began, written)
            result = worker.measure(number, min(left, limit), ledger.measured, keep)
            if result is None and left <= limit:
                setting.say("the budget is spent")
                return waiting[number:]
            result = result or {"error": f"stopped after {limit:.0f} s, its limit"}
            worker = None if "error" in result else worker
            ledger.write(item, {**result, "seconds": time.monotonic() - began})
            written()
    finally:
        if worker is not None:
            worker.end()
    return []


def _keep(ledger: Ledger, item: Item, began: float, written: Callable[[], None], part: Result, times: int) -> None:
    ledger.keep(item, {**part, "seconds": time.monotonic() - began}, times)
    written()


def passed(result: Mapping[str, Any]) -> bool:
    """Whether an item ended without an error and whole, and all that it compared is as it should be."""
    checks = [*result.get("equal", {}).values(), *result.get("targets", {}).values()]
    return not {"error", "cut_off"} & set(result) and all(check["ok"] for check in checks)
