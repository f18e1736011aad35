"""Evaluation metrics: `evaluate.Metric` subclasses that are imported, never loaded by path or from the network.

`evaluate` is imported when a metric class is first asked for; the functions behind the classes need it not.
Knows texts, flags and numbers; knows no model, no reward model and no policy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from finegrained_rlhf.metrics.functions import error_free_share, finite_mean, rouge_lsum, sacre_bleu

if TYPE_CHECKING:
    from finegrained_rlhf.metrics.classes import ErrorFreeShare, RougeLSum, SacreBLEU

__all__ = [
    "ErrorFreeShare",
    "RougeLSum",
    "SacreBLEU",
    "error_free_share",
    "finite_mean",
    "rouge_lsum",
    "sacre_bleu",
]


def __getattr__(name: str) -> Any:
    """Import the metric class `name`, and `evaluate` with it, on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.classes"), name)
