"""Random seeds that are functions of names.

Every random number of a run follows from (seed, what it is for, step), never from how many numbers were drawn before.
A run that resumes at a step therefore needs no stored generator state.
"""

from __future__ import annotations

import hashlib
import random


def stable_hash(*parts: int | str) -> int:
    """A 63-bit hash that is the same on every machine and in every process (BLAKE2b).

    Parts are tagged with their type and length, so ("a", "bc"), ("ab", "c") and ("1",), (1,) all differ.

    Returns:
        An integer in [0, 2**63).
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        if isinstance(part, bool) or not isinstance(part, int | str):
            raise TypeError(f"stable_hash takes int and str, got {type(part).__name__}")
        data = str(part).encode("utf-8", "surrogatepass")
        digest.update(f"{'i' if isinstance(part, int) else 's'}{len(data)}:".encode())
        digest.update(data)
    return int.from_bytes(digest.digest(), "big") >> 1


def seed_everything(seed: int, *stream: int | str) -> int:
    """Seed Python, NumPy and torch (all devices) from a hash of (seed, *stream).

    Args:
        seed: of the run.
        stream: what the numbers are for, for example a step and a rank.

    Returns:
        The derived seed, in [0, 2**63).
    """
    import numpy as np
    import torch

    derived = stable_hash(seed, *stream)
    random.seed(derived)
    np.random.seed(derived % 2**32)
    torch.manual_seed(derived)
    return derived
