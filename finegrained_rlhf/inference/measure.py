"""Means and timings of one training step, over all processes."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from finegrained_rlhf.runtime.processes import Processes


class StepMetrics:
    """Collects (sum, count) pairs by name and reduces them once. Every process must collect the same names."""

    def __init__(self) -> None:
        self._added: dict[str, list[Tensor | float]] = {}
        self._counts: set[str] = set()

    def add(self, name: str, total: Tensor | float, count: Tensor | float) -> None:
        """Add `total`, a sum over `count` items, to the mean called `name`; tensors have one element, [].

        Tensors stay where they are until `reduce`: adding waits for no device.
        """
        pair = (value.detach() if isinstance(value, Tensor) else value for value in (total, count))
        self._added.setdefault(name, []).extend(pair)

    def count(self, name: str, number: float) -> None:
        """Add a number to the sum called `name`."""
        self._counts.add(name)
        self.add(name, number, 1)

    def reduce(self, processes: Processes) -> dict[str, float]:
        """Means and sums over all processes, in order of first use; 0 where nothing was counted."""
        if not self._added:
            return {}
        numbers = iter(_read_once([value for values in self._added.values() for value in values]))
        sums = []
        for values in self._added.values():
            own = [next(numbers) for _ in values]
            sums.append((sum(own[::2]), sum(own[1::2])))
        pairs = processes.sum_(torch.tensor(sums, dtype=torch.float64))
        totals = dict(zip(self._added, pairs.tolist(), strict=True))
        return {name: s if name in self._counts else float(s / c) if c else 0.0 for name, (s, c) in totals.items()}


def _read_once(values: Sequence[Tensor | float]) -> list[float]:
    """All values as numbers; tensors of a dtype and a device together, with one wait for the device."""
    groups: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    for place, value in enumerate(values):
        if isinstance(value, Tensor):
            groups.setdefault((value.dtype, value.device), []).append(place)
    numbers = [0.0 if isinstance(value, Tensor) else float(value) for value in values]
    for places in groups.values():
        together = torch.stack([torch.as_tensor(values[place]).reshape(()) for place in places]).tolist()
        for place, number in zip(places, together, strict=True):
            numbers[place] = float(number)
    return numbers


class PhaseTimer:
    """Wall-clock seconds of named phases of a step; waits for the device at their ends."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the block's seconds to phase `name`."""
        start = time.perf_counter()
        yield
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def repetition(ids: Tensor, mask: Tensor, n: int = 3) -> Tensor:
    """Share of each response's n-grams that occurred in it before.

    Args:
        ids: int64 [R, T].
        mask: int64 [R, T]; what it leaves out is as if it were not there.
        n: length of the n-grams in tokens.

    Returns:
        fp32 [R]; 0 for responses shorter than n.
    """
    rows = [repeated_share(row[kept.bool()].tolist(), n) for row, kept in zip(ids, mask, strict=True)]
    return torch.tensor(rows, dtype=torch.float32)


def repeated_share(items: Sequence[Hashable], n: int = 3) -> float:
    """Share of a sequence's n-grams that occurred in it before; 0 for one shorter than n."""
    grams = [tuple(items[i : i + n]) for i in range(len(items) - n + 1)]
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0
