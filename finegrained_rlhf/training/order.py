"""Which items a training step uses: a function of (seed, step) alone, so resuming needs no sampler state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from finegrained_rlhf.core.seeding import stable_hash

T = TypeVar("T")


def items_of_step(items: Sequence[T], step: int, count: int, seed: int) -> list[T]:
    """The `count` items of training step `step` (from 1).

    Every epoch is a new permutation; steps walk through the epochs without a gap, so a step may end one epoch and begin
    the next, and nothing is left out where `count` does not divide the number of items.

    Args:
        items: at least one.
        step: from 1.
        count: items a step, over all processes.
        seed: of the run.
    """
    size = len(items)
    first = (step - 1) * count
    permutations: dict[int, np.ndarray] = {}
    chosen = []
    for position in range(first, first + count):
        epoch, place = divmod(position, size)
        if epoch not in permutations:
            permutations[epoch] = np.random.default_rng(stable_hash(seed, "order", epoch)).permutation(size)
        chosen.append(items[int(permutations[epoch][place])])
    return chosen
