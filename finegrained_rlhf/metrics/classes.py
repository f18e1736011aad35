"""The metrics as `evaluate.Metric` subclasses, which keep their inputs in memory and write no file."""

from __future__ import annotations

from typing import Any

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.metrics.functions import error_free_share, rouge_lsum, sacre_bleu
from finegrained_rlhf.text.segmentation import DEFAULT_SEGMENTER, SpacySegmenter

try:
    import datasets
    import evaluate
except ImportError:
    raise ConfigError("the metric classes need evaluate: pip install evaluate") from None


_TEXTS = datasets.Features(
    {"predictions": datasets.Value("string"), "references": datasets.Sequence(datasets.Value("string"))}
)


class InMemoryMetric(evaluate.Metric):  # type: ignore[misc]
    """An `evaluate.Metric` without a cache directory: batches stay in memory, nothing is written or fetched."""

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("keep_in_memory", True)
        super().__init__(**kwargs)

    def _build_data_dir(self) -> str:
        """No directory is made; `evaluate` would make one under the user's home."""
        return ""


class RougeLSum(InMemoryMetric):
    """RougeLSum F-measure against the best of several references, in [0, 1].

    `compute(predictions=[text, …], references=[[text, …], …])` gives `{"rouge_lsum": float}`.
    """

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="Summary-level ROUGE-L over sentences, stemmed, maximum over the references.",
            citation="Lin 2004, ROUGE: A Package for Automatic Evaluation of Summaries",
            inputs_description="predictions: texts; references: one list of texts a prediction; segmenter: spaCy name.",
            features=_TEXTS,
        )

    def _compute(self, predictions: Any, references: Any, segmenter: str = DEFAULT_SEGMENTER) -> dict[str, float]:
        return {"rouge_lsum": rouge_lsum(predictions, references, SpacySegmenter(segmenter))}


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
            features=_TEXTS,
        )

    def _compute(self, predictions: Any, references: Any) -> dict[str, Any]:
        score, signature = sacre_bleu(predictions, references)
        return {"bleu": score, "bleu_signature": signature}


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
