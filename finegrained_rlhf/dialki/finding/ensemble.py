"""An ensemble of DIALKIs (thesis, footnote 7): the mean of the distributions of several trained models."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.dialki.finding.finder import KnowledgeFinder
from finegrained_rlhf.dialki.inputs.batches import DialkiBatch
from finegrained_rlhf.dialki.model.heads import MASKED, NextScores, Vectors
from finegrained_rlhf.dialki.model.model import DialkiModel
from finegrained_rlhf.runtime.processes import Processes


class EnsembleFinder(KnowledgeFinder):
    """Several trained DIALKIs, or Multi-Sentences, that answer as one.

    The distributions over passages and, within each passage, over first and last spans are averaged; the answer is
    chosen from the means as a single model's is. How it is chosen (`search`) and γ are those of the first model; a
    `score_by` of logits adds the logarithms of the means. Answers have no gates: those belong to one model.

    Args:
        models: trained on the same inputs, at least one; all on the device of `processes`.
        processes: device and precision.
        options: `batch_size` and `group_size`.

    Raises:
        ConfigError: the models do not read alike, or γ is compared with logits, of which a mean has none.
    """

    def __init__(self, models: Sequence[DialkiModel], processes: Processes | None = None, **options: int) -> None:
        for number, model in enumerate(models[1:], start=2):
            _require_alike(models[0], model, number)
        if models[0].config.search.select_by != "probabilities":
            raise ConfigError(
                "ensemble: γ of the first model is compared with logits, which a mean of distributions has not; "
                "expected dialki.search.select_by=probabilities"
            )
        super().__init__(models[0], processes, **options)
        self.models = [self.model, *(model.to(self.processes.device).eval() for model in models[1:])]

    @property
    def has_gates(self) -> bool:
        """Never: gates are of one model."""
        return False

    def scores(self, batch: DialkiBatch) -> tuple[Vectors, NextScores]:
        """The first model's vectors, and the logarithms of the mean distributions as logits."""
        read = [model.encode(batch) for model in self.models]
        scores = [model.next_scores(vectors, batch) for model, vectors in zip(self.models, read, strict=True)]
        return read[0], mean_scores(scores)


def mean_scores(scores: Sequence[NextScores]) -> NextScores:
    """Logits whose softmax is the mean of the models' distributions: log (1/K Σ_k p_k) (thesis, footnote 7).

    Args:
        scores: of K models for the same batch: passage [N, M], begin and end [N, M, S], with the same masks.
    """
    first = scores[0]
    return NextScores(
        _log_mean([one.passage for one in scores], first.passage_mask),
        _log_mean([one.begin for one in scores], first.span_mask),
        _log_mean([one.end for one in scores], first.span_mask),
        first.passage_mask,
        first.span_mask,
    )


def _log_mean(logits: Sequence[Tensor], mask: Tensor) -> Tensor:
    """Log of the mean softmax over the last axis of K tensors [..., S]; `MASKED` where the mask [..., S] is False."""
    logs = torch.stack([part.float().masked_fill(~mask, MASKED).log_softmax(-1) for part in logits])
    return (logs.logsumexp(0) - math.log(len(logits))).masked_fill(~mask, MASKED)


def _require_alike(first: DialkiModel, other: DialkiModel, number: int) -> None:
    """Raise ConfigError where two models of an ensemble do not make the same inputs of a dialogue."""
    for what, firsts, others in (
        ("dialki.inputs", first.config.inputs, other.config.inputs),
        ("dialki.units", first.config.units, other.config.units),
    ):
        if firsts != others:
            raise ConfigError(f"ensemble: model {number} has other {what} than the first: {others} and {firsts}")
    if _reading(first.tokenizer) != _reading(other.tokenizer):
        raise ConfigError(f"ensemble: model {number} has another tokenizer than the first, expected the same one")


def _reading(tokenizer: Any) -> Any:
    """What decides which ids a text gets; how a tokenizer pads and cuts does not."""
    if not getattr(tokenizer, "is_fast", False):
        return type(tokenizer).__name__, tokenizer.get_vocab()
    record = json.loads(tokenizer.backend_tokenizer.to_str())
    return {name: value for name, value in record.items() if name not in ("padding", "truncation")}
