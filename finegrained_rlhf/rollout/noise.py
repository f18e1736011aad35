"""Sampling noise that depends on names, not on order.

A rollout must not change when batches are cut differently or spread over more processes. Each uniform number is
therefore a hash of (seed, step, name of the draw, sample number, position) and of nothing else. The name is the id of
the prompt, with the number of the occurrence where a step draws one prompt more than once (`Prompt.draw`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from finegrained_rlhf.core.records import Decoding, Prompt, Sample
from finegrained_rlhf.core.seeding import stable_hash

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _splitmix64(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The output function of SplitMix64 (Steele et al., 2014): a bijection of 64-bit words with full avalanche."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def uniform_noise(
    seed: int, step: int, names: Sequence[str], sample_index: Sequence[int], positions: int
) -> NDArray[np.float64]:
    """One uniform number in (0, 1) for each response row and position.

    Args:
        seed: of the run.
        step: training step, or any number that tells draws apart.
        names: of the R draws, one a row.
        sample_index: R sample numbers within the prompt.
        positions: T, how many positions.

    Returns:
        float64 [R, T].
    """
    if len(names) != len(sample_index):
        raise ValueError(f"{len(names)} names but {len(sample_index)} sample numbers")
    keys = np.array(
        [stable_hash(seed, step, name, sample) for name, sample in zip(names, sample_index, strict=True)],
        dtype=np.uint64,
    ).reshape(-1, 1)
    counters = np.arange(1, positions + 1, dtype=np.uint64).reshape(1, -1)
    with np.errstate(over="ignore"):
        bits = _splitmix64(keys + counters * _GOLDEN)
    # 52 bits and a half: exact in fp64. With 53 the half would be rounded away and 1.0 could come out.
    return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def row_noise(
    prompts: Sequence[Prompt], decodings: Sequence[Decoding], positions: int, seed: int, step: int
) -> NDArray[np.float64]:
    """The numbers of the rows of a rollout in the order of `assembly.row_order`; those of greedy rows are not used.

    Args:
        prompts: P prompts.
        decodings: together N a prompt; samples are numbered over all of them.
        positions: T, how many positions.
        seed: of the run.
        step: training step, or any number that tells draws apart.

    Returns:
        float64 [P·N, T].
    """
    numbers, drawn = [], 0
    for decoding in decodings:
        numbers += [drawn + sample for sample in range(decoding.samples)]
        drawn += decoding.samples if isinstance(decoding, Sample) else 0
    names = [prompt.draw for prompt in prompts for _ in numbers]
    return uniform_noise(seed, step, names, numbers * len(prompts), positions)
