"""BLEU of a corpus as an `evaluate.Metric`, by sacrebleu."""

from __future__ import annotations

from typing import Any

from finegrained_rlhf.metrics.base import InMemoryMetric, datasets, evaluate
from finegrained_rlhf.metrics.functions import sacre_bleu

__all__ = ["SacreBLEU", "sacre_bleu"]


class SacreBLEU(InMemoryMetric):
    """BLEU-4 of a corpus with sacrebleu's own settings, in [0, 100].

    `compute(predictions=[text, …], references=[[text, …], …])` gives `{"bleu": float, "bleu_signature": str}`; the
    signature names settings and version, as published scores do.
    """

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="Corpus BLEU-4 by sacrebleu (13a tokens, case kept, exponential smoothing).",
            citation="Post 2018, A Call for Clarity in Reporting BLEU Scores",
            inputs_description="predictions: texts; references: one list of texts a prediction.",
            features=datasets.Features(
                {"predictions": datasets.Value("string"), "references": datasets.Sequence(datasets.Value("string"))}
            ),
        )

    def _compute(self, predictions: Any, references: Any) -> dict[str, Any]:
        score, signature = sacre_bleu(predictions, references)
        return {"bleu": score, "bleu_signature": signature}
