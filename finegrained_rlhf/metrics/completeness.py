"""Means over responses as `evaluate.Metric`s: the completeness score and the length. Knows numbers only."""

from __future__ import annotations

from typing import Any

from finegrained_rlhf.metrics.base import InMemoryMetric, datasets, evaluate
from finegrained_rlhf.metrics.functions import finite_mean


class MeanCompleteness(InMemoryMetric):
    """Mean completeness score of responses.

    `compute(predictions=[score, …])` gives `{"completeness": float}`; a score that is not finite is an error.
    """

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="Arithmetic mean of the completeness reward model's score.",
            citation="Wu et al. 2023, Fine-Grained Human Feedback Gives Better Rewards for Language Model Training",
            inputs_description="predictions: one score a response.",
            features=datasets.Features({"predictions": datasets.Value("float64")}),
        )

    def _compute(self, predictions: Any) -> dict[str, float]:
        return {"completeness": finite_mean(predictions)}


class ResponseLength(InMemoryMetric):
    """Mean length of responses in tokens.

    `compute(predictions=[tokens, …])` gives `{"mean_tokens": float}`.
    """

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="Arithmetic mean of the number of response tokens.",
            citation="",
            inputs_description="predictions: the number of tokens of each response.",
            features=datasets.Features({"predictions": datasets.Value("int64")}),
        )

    def _compute(self, predictions: Any) -> dict[str, float]:
        return {"mean_tokens": finite_mean(predictions)}
