"""What the project's metrics share: an `evaluate.Metric` that keeps its inputs in memory and writes no file."""

from __future__ import annotations

from typing import Any

try:
    import datasets
    import evaluate
except ImportError:
    from finegrained_rlhf.core.errors import ConfigError

    raise ConfigError("the metric classes need evaluate: pip install evaluate") from None


__all__ = ["InMemoryMetric", "datasets", "evaluate"]


class InMemoryMetric(evaluate.Metric):  # type: ignore[misc]
    """An `evaluate.Metric` without a cache directory: batches stay in memory, nothing is written or fetched."""

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("keep_in_memory", True)
        super().__init__(**kwargs)

    def _build_data_dir(self) -> str:
        """No directory is made; `evaluate` would make one under the user's home."""
        return ""
