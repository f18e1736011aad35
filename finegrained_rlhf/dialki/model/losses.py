"""DIALKI's losses as functions of logits and labels (thesis, sections 3.2.2 and 3.2.3).

Logits have their padding masked. Every loss is a sum over the dialogues of a batch, so that micro-batches and processes
add up to the loss of the whole batch.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from finegrained_rlhf.dialki.inputs.batches import NO_LABEL, Targets
from finegrained_rlhf.dialki.model.heads import HistoryScores, NextScores


def next_loss(scores: NextScores, targets: Targets) -> Tensor:
    """−log q of the gold passage among its dialogue's, and of the first and last gold span in it (3.1 to 3.3), in nats.

    Args:
        scores: of N dialogues.
        targets: their labels, all known.

    Returns:
        fp32 [3]: sums over the dialogues of the passage, begin and end loss.
    """
    if targets.passage.shape != scores.passage.shape[:1]:
        raise ValueError(f"{len(targets.passage)} labels for {len(scores.passage)} dialogues")
    rows = torch.arange(len(targets.passage), device=targets.passage.device)
    return torch.stack(
        [
            F.cross_entropy(scores.passage, targets.passage, reduction="sum"),
            F.cross_entropy(scores.begin[rows, targets.passage], targets.begin, reduction="sum"),
            F.cross_entropy(scores.end[rows, targets.passage], targets.end, reduction="sum"),
        ]
    )


def marginal_loss(scores: NextScores, targets: Targets) -> Tensor:
    """−log of the probability that passage, first and last span are those of any gold entry, in nats.

    With q(p, b, e) = q(p) q(b | p) q(e | p) summed over a dialogue's entries. The parts are those of the chain rule:
    that the passage is one of gold; that the first span is right, given that; that the last one is, given both. With
    one entry they are those of `next_loss`. (After the marginal likelihood of Cheng et al. 2020, "Probabilistic
    assumptions matter", over document-level answers.)

    Args:
        scores: of N dialogues.
        targets: with `entries` [N, G, 3], at least one a dialogue.

    Returns:
        fp32 [3]: sums over the dialogues of the passage, begin and end part.
    """
    if targets.entries.shape[:1] != scores.passage.shape[:1] or not targets.entries.shape[1]:
        raise ValueError(f"gold entries {tuple(targets.entries.shape)} for {len(scores.passage)} dialogues")
    known = targets.entries[..., 0] != NO_LABEL
    passage, begin, end = targets.entries.clamp(min=0).unbind(-1)
    rows = torch.arange(len(passage), device=passage.device)[:, None]
    logs = scores.passage.log_softmax(dim=-1).gather(1, passage)
    so_far, parts = passage, [_log_sum(logs, known & _first(passage, known))]
    for place, of_spans in ((begin, scores.begin), (end, scores.end)):
        so_far = so_far * of_spans.shape[-1] + place  # passage, begin and end as one number
        logs = logs + of_spans.log_softmax(dim=-1)[rows, passage, place]
        parts.append(_log_sum(logs, known & _first(so_far, known)))
    log_sums = torch.stack(parts)
    return -torch.cat([log_sums[:1], log_sums.diff(dim=0)]).sum(dim=1)


def binary_loss(scores: NextScores, targets: Targets) -> Tensor:
    """−log σ of the logit of every gold passage and −log (1 − σ) of every other one, in nats.

    Each passage is right or wrong by itself, so that σ of its logit is the probability that it is part of the answer.
    For passages without spans alone.

    Args:
        scores: of N dialogues; the masked passages count nothing.
        targets: with `entries` [N, G, 3], at least one a dialogue.

    Returns:
        fp32 [3]: the sum over the passages of all dialogues, and 0 for begin and end.
    """
    if targets.entries.shape[:1] != scores.passage.shape[:1] or not targets.entries.shape[1]:
        raise ValueError(f"gold entries {tuple(targets.entries.shape)} for {len(scores.passage)} dialogues")
    places = targets.entries[..., 0]
    known = places != NO_LABEL
    right = torch.zeros_like(scores.passage).scatter_add(1, places.clamp(min=0), known.to(scores.passage.dtype))
    mask = scores.passage_mask
    loss = F.binary_cross_entropy_with_logits(scores.passage[mask], right[mask].clamp(max=1.0), reduction="sum")
    return torch.stack([loss, *loss.new_zeros(2)])


def _first(numbers: Tensor, known: Tensor) -> Tensor:
    """Bool [N, G]: no known entry before it has the same number [N, G]."""
    same = (numbers[:, :, None] == numbers[:, None, :]) & known[:, None, :]
    return ~same.tril(diagonal=-1).any(dim=-1)


def _log_sum(logs: Tensor, counted: Tensor) -> Tensor:
    """[N]: log of the summed exponentials of those entries [N, G] that are counted."""
    return logs.masked_fill(~counted, -torch.inf).logsumexp(dim=1)


def history_loss(scores: HistoryScores, targets: Targets) -> Tensor:
    """The mean over a dialogue's labelled turns of the passage, begin and end losses of each, in nats.

    A dialogue without a label contributes 0. (The original code averages over the labelled turns of the batch instead,
    which is NaN where there is none.)

    Args:
        scores: of N dialogues with T turns.
        targets: labels of the turns, −1 where there is none.

    Returns:
        fp32 scalar: sum over the dialogues.
    """
    if targets.history_passage.shape != scores.passage.shape[:2]:
        raise ValueError(f"labels {tuple(targets.history_passage.shape)} for turns {tuple(scores.passage.shape[:2])}")
    known = targets.history_passage != NO_LABEL
    n, t = known.nonzero(as_tuple=True)
    passage = targets.history_passage[n, t]
    each = (
        F.cross_entropy(scores.passage[n, t], passage, reduction="none")
        + F.cross_entropy(scores.begin[n, t, passage], targets.history_begin[n, t], reduction="none")
        + F.cross_entropy(scores.end[n, t, passage], targets.history_end[n, t], reduction="none")
    )
    return (each / known.sum(dim=1)[n]).sum()


def jensen_shannon(first: Tensor, second: Tensor, mask: Tensor) -> Tensor:
    """The Jensen–Shannon divergence ½ KL(p‖m) + ½ KL(q‖m), m = (p + q)/2, of two masked softmax distributions, in nats.

    It is symmetric, 0 where the distributions are equal, and at most log 2.

    Args:
        first: logits [..., K] of p.
        second: logits [..., K] of q.
        mask: bool [..., K], True = a choice; a row without any gives 0.

    Returns:
        fp32 [...].
    """
    if not first.shape == second.shape == mask.shape:
        raise ValueError(f"expected one shape, got {tuple(first.shape)}, {tuple(second.shape)}, {tuple(mask.shape)}")
    log_p, log_q = (_masked_log_softmax(logits, mask) for logits in (first, second))
    log_m = torch.logaddexp(log_p, log_q) - math.log(2.0)
    terms = 0.5 * (log_p.exp() * (log_p - log_m) + log_q.exp() * (log_q - log_m))
    return terms.masked_fill(~mask, 0.0).sum(dim=-1)


def _masked_log_softmax(logits: Tensor, mask: Tensor) -> Tensor:
    """Log-probabilities over the real choices, fp32; 0 elsewhere, so that nothing there can become infinite."""
    log_p = torch.log_softmax(logits.float().masked_fill(~mask, torch.finfo(torch.float32).min / 2), dim=-1)
    return log_p.masked_fill(~mask, 0.0)


def divergence(clean: NextScores, noisy: NextScores) -> Tensor:
    """How far two predictions for the same dialogues are apart: L_adv before its maximum (thesis, section 3.2.3).

    The divergence of the passage distributions, plus those of the begin and of the end distributions of each passage.

    Returns:
        fp32 scalar: sum over the dialogues.
    """
    passages = jensen_shannon(clean.passage, noisy.passage, clean.passage_mask)
    begin = jensen_shannon(clean.begin, noisy.begin, clean.span_mask)
    end = jensen_shannon(clean.end, noisy.end, clean.span_mask)
    return passages.sum() + begin.sum() + end.sum()
