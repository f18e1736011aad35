"""A decoding step recorded as a CUDA graph: one launch instead of hundreds.

A step only reads and writes tensors that keep their place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_WARM_UPS = 3


class GraphPool:
    """Memory for what steps compute with between their first and last operation, shared by all recordings.

    They may share it because they run one after the other, and none reads what another left there.
    """

    def __init__(self) -> None:
        self._handle: Any = None

    @property
    def handle(self) -> Any:
        """What `torch.cuda.graph` takes as `pool`."""
        if self._handle is None:
            self._handle = torch.cuda.graph_pool_handle()
        return self._handle


class GraphedStep:
    """Records a step the first time it is asked for with a window, and replays it from then on.

    Args:
        step: does one step for a window; never waits for the device, and leaves nothing but in tensors that were there
            before.
        volatile: the tensors that must not have changed after recording, because a later step starts from them.
        pool: where the step's other tensors lie.
    """

    def __init__(self, step: Callable[[int], None], volatile: Sequence[Tensor], pool: GraphPool) -> None:
        self._step, self._volatile, self._pool = step, volatile, pool
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def __call__(self, window: int) -> None:
        """Do one step."""
        if window not in self._graphs:
            self._graphs[window] = self._record(window)
        self._graphs[window].replay()

    def _record(self, window: int) -> torch.cuda.CUDAGraph:
        """Warm up on a side stream, put the state back, and record (which runs nothing)."""
        saved = [tensor.clone() for tensor in self._volatile]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                self._step(window)
                for tensor, before in zip(self._volatile, saved, strict=True):
                    tensor.copy_(before)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool.handle):
            self._step(window)
        return graph
