"""Fine-grained RLHF: a language model learns from feedback on which part of a text has which kind of error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from finegrained_rlhf.inference.generator import load_policy

__all__ = ["load_policy"]


def __getattr__(name: str) -> Any:
    """Import `load_policy` on first use, so that the package itself stays light."""
    if name == "load_policy":
        from finegrained_rlhf.inference.generator import load_policy

        return load_policy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
