"""Which items a training step uses: a function of (seed, step) alone, so resuming needs no sampler state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from finegrained_rlhf.core.records import Prompt
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


def number_occurrences(prompts: Sequence[Prompt]) -> list[Prompt]:
    """The prompts of a step, each with the number of its occurrence, so that two draws of one prompt get other samples.

    Args:
        prompts: all prompts of the step, over all processes, in its order: the numbers count along them.

    Returns:
        As many prompts in the same order; those that occur first are the given ones.
    """
    seen: Counter[str] = Counter()
    numbered = []
    for prompt in prompts:
        seen[prompt.id] += 1
        numbered.append(prompt if seen[prompt.id] == prompt.occurrence else replace(prompt, occurrence=seen[prompt.id]))
    return numbered
