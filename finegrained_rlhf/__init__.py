"""Fine-grained RLHF: a language model learns from feedback on which part of a text has which kind of error."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from finegrained_rlhf.inference.generator import load_policy

__all__ = ["load_policy"]

# Read when torch loads its OpenMP, so it has effect where this package is imported before torch, as all commands do.
# Threads that spin for long while they wait for each other take a busy machine's cores from the threads that they wait
# for. A short spin costs an idle machine a seventh of a step and saves a busy one a third of it or more; measured in
# docs/benchmarks.md ("Under load").
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def __getattr__(name: str) -> Any:
    """Import `load_policy` on first use, so that the package itself stays light."""
    if name == "load_policy":
        from finegrained_rlhf.inference.generator import load_policy

        return load_policy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
