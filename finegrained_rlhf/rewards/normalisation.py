"""Standardising the values of a component: by moments that move with training, or by moments that stand still.

Training divides by what the component gave so far; a validation score made that way would change although the responses
did not, so validations are standardised by the moments of the first of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from finegrained_rlhf.rl.stats import Reduce, RunningMoments

if TYPE_CHECKING:
    import torch


class Normaliser:
    """Running moments of one component, and those that validations use.

    Args:
        reduce: sums a small tensor over all processes.

    Attributes:
        running: of all values that training has seen.
        fixed: of the values of the first validation; None before it.
    """

    def __init__(self, reduce: Reduce) -> None:
        self._reduce = reduce
        self.running = RunningMoments()
        self.fixed: RunningMoments | None = None

    def train(self, rows: Sequence[tuple[float, ...]]) -> Sequence[tuple[float, ...]]:
        """(v − μ) / σ by the running moments, which take the values in first."""
        self.running.update(_flat(rows), self._reduce)
        return _standardised(rows, self.running)

    def fix(self, rows: Sequence[tuple[float, ...]]) -> None:
        """Keep the moments of these values for all validations; later calls change nothing.

        Every process must call this with its own share of the values.
        """
        if self.fixed is None:
            moments = RunningMoments()
            moments.update(_flat(rows), self._reduce)
            self.fixed = moments

    def validate(self, rows: Sequence[tuple[float, ...]]) -> Sequence[tuple[float, ...]]:
        """(v − μ) / σ by the fixed moments; by the running ones, left as they are, where none were fixed."""
        return _standardised(rows, self.fixed or self.running)

    @property
    def seen(self) -> bool:
        """True when there are moments to standardise by."""
        return bool(self.running.count or self.fixed)

    def state(self) -> dict[str, Any]:
        """What a checkpoint must keep."""
        return {"running": _listed(self.running), "validation": self.fixed and _listed(self.fixed)}

    def load_state(self, state: Any) -> None:
        """Take back what `state` gave; also the three numbers that older checkpoints hold."""
        if isinstance(state, list):
            state = {"running": state, "validation": None}
        self.running = RunningMoments(*state["running"])
        self.fixed = RunningMoments(*state["validation"]) if state["validation"] else None


def _flat(rows: Sequence[tuple[float, ...]]) -> torch.Tensor:
    import torch

    return torch.tensor([value for row in rows for value in row])


def _standardised(rows: Sequence[tuple[float, ...]], moments: RunningMoments) -> Sequence[tuple[float, ...]]:
    return [tuple((value - moments.mean) / moments.std for value in row) for row in rows]


def _listed(moments: RunningMoments) -> list[float]:
    return [moments.count, moments.mean, moments.m2]
