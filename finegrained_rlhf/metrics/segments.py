"""Share of segments without error as an `evaluate.Metric`."""

from __future__ import annotations

from typing import Any

from finegrained_rlhf.metrics.base import InMemoryMetric, datasets, evaluate
from finegrained_rlhf.metrics.functions import error_free_share


class ErrorFreeShare(InMemoryMetric):
    """Share of (sub-)sentences predicted to hold no error, weighted by their number.

    `compute(predictions=[[1, 0, 1], …])` (1 = no error) gives `{"error_free_share": float, "segments": int}`.
    """

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="Share of segments without error over all responses, each segment counting once.",
            citation="Wu et al. 2023, Fine-Grained Human Feedback Gives Better Rewards for Language Model Training",
            inputs_description="predictions: for each response one flag a segment, 1 = no error, 0 = error.",
            features=datasets.Features({"predictions": datasets.Sequence(datasets.Value("int64"))}),
        )

    def _compute(self, predictions: Any) -> dict[str, float]:
        return {"error_free_share": error_free_share(predictions), "segments": sum(len(row) for row in predictions)}
