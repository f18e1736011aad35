"""RougeLSum as an `evaluate.Metric`."""

from __future__ import annotations

from typing import Any

from finegrained_rlhf.metrics.base import InMemoryMetric, datasets, evaluate
from finegrained_rlhf.metrics.functions import rouge_lsum
from finegrained_rlhf.text.segmentation import DEFAULT_SEGMENTER, SpacySegmenter

__all__ = ["RougeLSum", "rouge_lsum"]


class RougeLSum(InMemoryMetric):
    """RougeLSum F-measure against the best of several references, in [0, 1].

    `compute(predictions=[text, …], references=[[text, …], …])` gives `{"rouge_lsum": float}`.
    """

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="Summary-level ROUGE-L over sentences, stemmed, maximum over the references.",
            citation="Lin 2004, ROUGE: A Package for Automatic Evaluation of Summaries",
            inputs_description="predictions: texts; references: one list of texts a prediction; segmenter: spaCy name.",
            features=datasets.Features(
                {"predictions": datasets.Value("string"), "references": datasets.Sequence(datasets.Value("string"))}
            ),
        )

    def _compute(self, predictions: Any, references: Any, segmenter: str = DEFAULT_SEGMENTER) -> dict[str, float]:
        return {"rouge_lsum": rouge_lsum(predictions, references, SpacySegmenter(segmenter))}
