"""Losses and sums of the two forms of reward model: labels of segments, and pairs of scored answers.

Sums, not means, so that micro-batches and processes can be added up exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from reward_models.data.examples import RewardExample
from reward_models.encoders.counts import CountLayer
from reward_models.encoders.inputs import InputBatch, pad_inputs
from reward_models.encoders.models import RewardModel
from reward_models.kinds import Form
from reward_models.record import error_label_ids
from reward_models.training.logistic import balanced_weights


def segment_loss(logits: Tensor, labels: Tensor, weights: Tensor | None = None, each: Tensor | None = None) -> Tensor:
    """Sum over segments of the cross-entropy, in nats.

    Args:
        logits: fp32 [S, C].
        labels: int64 [S], label ids.
        weights: fp32 [C], what a segment of each label counts; None is 1.
        each: fp32 [S], what each segment counts beside that; None is 1.

    Returns:
        fp32 scalar.
    """
    if logits.ndim != 2 or labels.shape != logits.shape[:1]:
        raise ValueError(f"expected logits [S, C] and labels [S], got {tuple(logits.shape)} and {tuple(labels.shape)}")
    if each is None:
        return F.cross_entropy(logits, labels, weight=weights, reduction="sum")
    return (F.cross_entropy(logits, labels, weight=weights, reduction="none") * each).sum()


def pairwise_loss(better: Tensor, worse: Tensor) -> Tensor:
    """Sum over pairs of −log σ(R(better) − R(worse)), in nats (thesis, section 6.3; Bradley and Terry 1952).

    Args:
        better: fp32 [M], scores of the better answers.
        worse: fp32 [M], scores of the worse ones.

    Returns:
        fp32 scalar.
    """
    if better.ndim != 1 or better.shape != worse.shape:
        raise ValueError(f"expected two score vectors of one length, got {tuple(better.shape)}, {tuple(worse.shape)}")
    return F.softplus(worse - better).sum()


@dataclass(frozen=True)
class LabelWeights:
    """What a segment counts in the loss, by its label.

    Attributes:
        no_error: of a segment without an error.
        has_error: of one with an error.
    """

    no_error: float = 1.0
    has_error: float = 1.0

    @staticmethod
    def balanced(examples: Sequence[RewardExample]) -> LabelWeights:
        """Weights under which both labels count the same in all, and a segment 1 on average.

        1 each where a label never occurs.
        """
        labels = [bool(label) for example in examples for label in example.labels if label is not None]
        return LabelWeights(*balanced_weights(sum(labels), len(labels)))


def metrics_of(sums: Tensor, form: Form) -> dict[str, float]:
    """Loss and accuracy a segment or pair, and more by form.

    Of segments F1 of "has error" and the balanced accuracy: F1 = 2·TP / (2·TP + FP + FN), 0 where no error is
    labelled or claimed; balanced accuracy is the mean recall of the classes that occur. Of pairs `score_std`, the
    (population) standard deviation of the raw scores of all answers.

    Args:
        sums: [6]: loss in nats, items (labelled segments or pairs) and correct ones; then of segments with an error:
            found, wrongly claimed, missed; of answers in pairs: how many, sum and sum of squares of their raw scores.
        form: which of the two.
    """
    loss, items, correct, *rest = sums.tolist()
    result = {"loss": loss / max(items, 1), "accuracy": correct / max(items, 1)}
    if form == "sequence":
        mean, squares = (value / max(rest[0], 1) for value in rest[1:])
        spread = math.sqrt(max(squares - mean**2, 0.0))
        return {**result, "pair_accuracy": result["accuracy"], "score_std": spread}
    found, claimed, missed = rest
    errors, clean = found + missed, items - found - missed
    recalls = [part / whole for part, whole in ((found, errors), (clean - claimed, clean)) if whole]
    return {
        **result,
        "f1_has_error": 2 * found / max(2 * found + claimed + missed, 1),
        "balanced_accuracy": sum(recalls) / max(len(recalls), 1),
        "share_has_error": errors / max(items, 1),
    }


def biased(logits: Tensor, batch: InputBatch, bias: CountLayer | None) -> Tensor:
    """Logits, fp32 [S, C] of segments or [B] of answers, with what a bias model says of the same counts added.

    The sum of log odds is the product of two experts. Its loss has little gradient where the bias model, which stays as
    it is, says what is right already: the other one learns the rest, and is then used alone (Clark et al. 2019, "Don't
    take the easy way out", bias product; He et al. 2019, "Unlearn dataset bias in natural language inference by fitting
    the residual"). Scores of whole answers are compared by their difference, so they add up alike.
    """
    if bias is None:
        return logits
    assert batch.counts is not None
    return logits + bias.of(batch.counts).reshape_as(logits)


def labelled_items(examples: Sequence[RewardExample]) -> int:
    """Labelled segments, or pairs, of examples."""
    return sum(len(example.pairs) + sum(label is not None for label in example.labels) for example in examples)


def _segment_sums(
    model: RewardModel,
    examples: Sequence[RewardExample],
    batch: InputBatch,
    weights: LabelWeights,
    bias: CountLayer | None,
) -> tuple[Tensor, list[Tensor]]:
    """Summed loss and what `metrics_of` takes of segment labels; those without one are left out."""
    flat = [label for example in examples for label in example.labels]
    known = torch.tensor(
        [i for i, label in enumerate(flat) if label is not None], dtype=torch.long, device=model.device
    )
    wrong_ids = sorted(error_label_ids(model.model.config.id2label))
    clean_id = next(i for i in sorted(model.model.config.id2label) if i not in wrong_ids)
    ids = [wrong_ids[min(label, len(wrong_ids)) - 1] if label else clean_id for label in flat if label is not None]
    labels = torch.tensor(ids, dtype=torch.long, device=model.device)
    logits = biased(model.segment_logits(batch), batch, bias)[known]
    errors = torch.tensor(wrong_ids, device=model.device)
    of_labels = torch.full(logits.shape[1:], weights.no_error, device=model.device).index_fill(
        0, errors, weights.has_error
    )
    own = [weight for example in examples for weight in example.weights or (1.0,) * len(example.labels)]
    each = torch.tensor(own, device=model.device)[known] if any(e.weights for e in examples) else None
    loss = segment_loss(logits, labels, of_labels, each)
    is_error, says_error = torch.isin(labels, errors), torch.isin(logits.argmax(dim=-1), errors)
    found, claimed, missed = is_error & says_error, ~is_error & says_error, is_error & ~says_error
    counts = [(is_error == says_error).sum(), found.sum(), claimed.sum(), missed.sum()]
    return loss, [loss.detach(), torch.tensor(len(ids)), *counts]


def _pair_sums(
    model: RewardModel, examples: Sequence[RewardExample], batch: InputBatch, bias: CountLayer | None
) -> tuple[Tensor, list[Tensor]]:
    """Summed loss and what `metrics_of` takes of pairs; one is correct where R(better) > R(worse)."""
    scores = biased(model.answer_scores(batch), batch, bias)
    better, worse, first = [], [], 0
    for example in examples:
        better += [first + i for i, _ in example.pairs]
        worse += [first + j for _, j in example.pairs]
        first += len(example.inputs)
    above, below = scores[better], scores[worse]
    loss = pairwise_loss(above, below)
    raw = scores.detach().double()
    sums = [loss.detach(), torch.tensor(len(better)), (above > below).sum()]
    return loss, [*sums, torch.tensor(len(raw)), raw.sum(), (raw**2).sum()]


def reward_model_objective(
    model: RewardModel,
    examples: Sequence[RewardExample],
    weights: LabelWeights = LabelWeights(),
    bias: CountLayer | None = None,
) -> tuple[Tensor, Tensor]:
    """Summed loss (fp32 scalar with gradient) and sums fp64 [6] as `metrics_of` takes them.

    Pairs have no labels: they all count 1, whatever `weights` says. With `bias` all is of the product of model and bias
    model.
    """
    inputs = [item for example in examples for item in example.inputs]
    batch = pad_inputs(inputs, model.tokenizer.pad_token_id, model.device)
    if model.record.labels_segments:
        loss, sums = _segment_sums(model, examples, batch, weights, bias)
    else:
        loss, sums = _pair_sums(model, examples, batch, bias)
    return loss, torch.stack([value.double().cpu() for value in sums])
