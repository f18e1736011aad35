"""How long a run will take, said after its first micro-batch: a first step at paper scale takes minutes by itself.

The loop says which step is the first; whoever cuts a step into micro-batches hands them through `first_measured`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

import torch

from finegrained_rlhf.runtime.console import in_words

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass
class _FirstStep:
    """The first step of a start: when it began, and how many steps are to be made, this one included."""

    started: float
    steps: int
    told: bool = False


_FIRST_STEP: ContextVar[_FirstStep | None] = ContextVar("first_step", default=None)


@contextmanager
def first_step(steps: int, shown: bool) -> Iterator[None]:
    """Mark the block as the first training step of a start.

    Args:
        steps: training steps that are left, this one included.
        shown: False (every process but the main one) says nothing.
    """
    token = _FIRST_STEP.set(_FirstStep(time.perf_counter(), steps) if shown else None)
    try:
        yield
    finally:
        _FIRST_STEP.reset(token)


def first_measured(micro_batches: Sequence[T], passes: int = 1) -> Iterator[T]:
    """The micro-batches of a step; in the first step of a start the first one is timed, and a forecast is logged.

    Args:
        micro_batches: of one pass over the step's batch.
        passes: how often the step goes through them.
    """
    for number, micro_batch in enumerate(micro_batches):
        began = time.perf_counter()
        yield micro_batch
        if number == 0:
            _forecast(began, len(micro_batches) * passes - 1)


def _forecast(began: float, left: int) -> None:
    first = _FIRST_STEP.get()
    if first is None or first.told or left < 1:
        return
    first.told = True
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    now = time.perf_counter()
    step = now - first.started + left * (now - began)
    logger.info(
        "forecast: a micro-batch took %.2g s, %d more make a step of about %s; %d steps about %s, without validations",
        now - began,
        left,
        in_words(step),
        first.steps,
        in_words(step * first.steps),
    )
