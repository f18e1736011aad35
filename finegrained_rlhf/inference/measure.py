"""Means and timings of one training step, over all processes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor

from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.runtime.processes import Processes


class StepMetrics:
    """Collects (sum, count) pairs by name and reduces them once. Every process must collect the same names."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, float]] = {}

    def add(self, name: str, total: Tensor | float, count: Tensor | float) -> None:
        """Add `total`, a sum over `count` items, to the mean called `name`; tensors have one element, []."""
        old_total, old_count = self._sums.get(name, (0.0, 0.0))
        self._sums[name] = (old_total + float(total), old_count + float(count))

    def reduce(self, processes: Processes) -> dict[str, float]:
        """Means over all processes, in order of first use; 0 where nothing was counted."""
        if not self._sums:
            return {}
        pairs = processes.sum_(torch.tensor(list(self._sums.values()), dtype=torch.float64))
        return {name: float(s / c) if c else 0.0 for name, (s, c) in zip(self._sums, pairs.tolist(), strict=True)}


class ResponseMonitor(Protocol):
    """Measures responses beside the reward, for example by an oracle. It never enters training or selection."""

    def counts(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> Mapping[str, tuple[float, float]]:
        """(sum, count) of each measurement of R responses; the same names for every input, the empty one included."""


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
        mask: int64 [R, T].
        n: length of the n-grams in tokens.

    Returns:
        fp32 [R]; 0 for responses shorter than n.
    """
    shares = []
    for row, length in zip(ids.tolist(), mask.sum(dim=1).tolist(), strict=True):
        grams = [tuple(row[i : i + n]) for i in range(length - n + 1)]
        shares.append(1.0 - len(set(grams)) / len(grams) if grams else 0.0)
    return torch.tensor(shares, dtype=torch.float32)
