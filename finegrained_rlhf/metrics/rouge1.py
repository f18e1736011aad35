"""ROUGE-1 of single texts, as query rewrites are compared with human ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from finegrained_rlhf.core.errors import ConfigError


def rouge1_scores(predictions: Sequence[str], references: Sequence[str]) -> list[float]:
    """ROUGE-1 F1 of each prediction with its reference, in [0, 1]: lower-cased words, unstemmed, by `rouge_score`.

    Raises:
        ValueError: the numbers of predictions and references differ.
        ConfigError: `rouge_score` is not installed.
    """
    return [float(score.fmeasure) for score in _scored(predictions, references)]


def rouge1_recalls(predictions: Sequence[str], references: Sequence[str]) -> list[float]:
    """The share of each reference's words that its prediction has (ROUGE-1 recall); else as `rouge1_scores`."""
    return [float(score.recall) for score in _scored(predictions, references)]


def _scored(predictions: Sequence[str], references: Sequence[str]) -> Iterator[Any]:
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError:
        raise ConfigError("ROUGE-1 needs rouge_score: pip install rouge-score") from None
    if len(predictions) != len(references):
        raise ValueError(f"need a reference a prediction, got {len(predictions)} and {len(references)}")
    scorer = RougeScorer(["rouge1"], use_stemmer=False)
    for prediction, reference in zip(predictions, references, strict=True):
        yield scorer.score(reference, prediction)["rouge1"]
