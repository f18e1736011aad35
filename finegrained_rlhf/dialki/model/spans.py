"""From logits of spans to runs of spans: the best of a passage, the best of all passages, the n best."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class BestSpans:
    """The best run of spans of each of N passages.

    Attributes:
        begin: int64 [N], its first span.
        end: int64 [N], its last span, inclusive.
        score: fp32 [N], the sum of its begin and end score.
    """

    begin: Tensor
    end: Tensor
    score: Tensor


def best_spans(begin: Tensor, end: Tensor, mask: Tensor, max_spans: int) -> BestSpans:
    """The pair i ≤ j < i + `max_spans` of candidates with the highest begin[i] + end[j] (thesis, section 3.2.3).

    Of equal pairs the one with the smallest i wins, then the one with the smallest j.

    Args:
        begin: float [N, S], score of each span as the first one.
        end: float [N, S], as the last one.
        mask: bool [N, S], True = a candidate; at least one a row.
        max_spans: longest run, at least 1.
    """
    scores, reach = _pairs(begin, end, mask, max_spans)
    best = scores.argmax(dim=1)
    first = best // reach
    return BestSpans(first, first + best % reach, scores.gather(1, best[:, None]).squeeze(1))


def best_jointly(
    passages: Tensor, begin: Tensor, end: Tensor, mask: Tensor, max_spans: int
) -> tuple[Tensor, BestSpans]:
    """The passage and its run of spans with the highest log p(passage) + log p(begin) + log p(end).

    Of equal ones the first passage wins, then as in `best_spans`.

    Args:
        passages: log-probabilities [N, M]; −inf where there is no passage.
        begin: logits [N, M, S] of each span as the first one.
        end: logits [N, M, S], as the last one.
        mask: bool [N, M, S], True = a candidate; at least one in each passage that is there.
        max_spans: longest run, at least 1.

    Returns:
        int64 [N], the passage, and its run; `score` is the sum of the three log-probabilities, in nats.
    """
    masked = torch.finfo(torch.float32).min / 4
    first, last = (part.float().masked_fill(~mask, masked).log_softmax(-1).flatten(0, 1) for part in (begin, end))
    runs = best_spans(first, last, mask.flatten(0, 1), max_spans)
    scores = passages + runs.score.view_as(passages)
    best = scores.argmax(dim=1)
    rows = best + torch.arange(len(best), device=best.device) * passages.shape[1]
    return best, BestSpans(runs.begin[rows], runs.end[rows], scores.gather(1, best[:, None]).squeeze(1))


def top_spans(begin: Tensor, end: Tensor, mask: Tensor, max_spans: int, count: int) -> BestSpans:
    """The `count` best pairs of each row, best first: what `best_spans` finds, and what comes after it.

    Args:
        begin: float [N, S], score of each span as the first one.
        end: float [N, S], as the last one.
        mask: bool [N, S], True = a candidate.
        max_spans: longest run, at least 1.
        count: pairs.

    Returns:
        `begin`, `end` and `score` as [N, K], K ≤ `count`; a score is −inf where a row has fewer pairs.
    """
    scores, reach = _pairs(begin, end, mask, max_spans)
    top = scores.topk(min(count, scores.shape[1]), dim=1)
    first = top.indices // reach
    values = top.values.masked_fill(top.values == torch.finfo(torch.float32).min, -torch.inf)
    return BestSpans(first, first + top.indices % reach, values)


def _pairs(begin: Tensor, end: Tensor, mask: Tensor, max_spans: int) -> tuple[Tensor, int]:
    """begin[i] + end[i + k] at place i · reach + k of [N, S · reach], the lowest number where there is no such pair."""
    if begin.ndim != 2 or not begin.shape == end.shape == mask.shape:
        raise ValueError(f"expected three [N, S], got {tuple(begin.shape)}, {tuple(end.shape)}, {tuple(mask.shape)}")
    spans = begin.shape[1]
    reach = min(max_spans, spans)
    none = torch.finfo(torch.float32).min
    ends = torch.where(mask, end.float(), none)
    ahead = torch.nn.functional.pad(ends, (0, reach - 1), value=none).unfold(1, reach, 1)  # [N, S, reach]: end[i + k]
    real = mask[:, :, None] & (ahead > none)
    return torch.where(real, begin.float()[:, :, None] + ahead, none).flatten(1), reach
