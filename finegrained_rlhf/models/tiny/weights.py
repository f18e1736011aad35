"""What the builders of tiny models share: their sizes are checked, and their weights drawn under a seed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from finegrained_rlhf.core.errors import ConfigError


def check_sizes(width: int, inner: int, layers: int, heads: int) -> None:
    """Raise ConfigError unless all sizes are positive and the heads divide the width."""
    if min(width, inner, layers, heads) < 1 or width % heads:
        raise ConfigError(
            f"sizes must be positive and the width a multiple of the heads, got width {width}, inner size {inner}, "
            f"{layers} layers, {heads} heads"
        )


@contextmanager
def drawn_under(seed: int) -> Iterator[None]:
    """Random weights made inside are those of `seed`; the caller's random state is left alone."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
