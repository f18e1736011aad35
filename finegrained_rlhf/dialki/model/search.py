"""From scores of passages and spans to knowledge: the best run of spans of the best passage, and passages above γ.

Knows logits and masks. Does not know models or texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from finegrained_rlhf.core.errors import ConfigError

ScoreBy = Literal["probabilities", "logits", "joint"]
"""`joint` chooses passage and spans together; the others choose the best passage first."""


SelectBy = Literal["probabilities", "logits", "sigmoid"]
"""What γ is compared with: a passage's probability among those searched, its logit, or σ of its logit."""


def check_select_by(value: str, key: str) -> None:
    """Raise ConfigError, naming the key, for what is none of them."""
    if value not in get_args(SelectBy):
        raise ConfigError(f"{key}: expected one of {', '.join(get_args(SelectBy))}, got {value!r}")


@dataclass(frozen=True)
class SearchConfig:
    """How an answer is chosen.

    Attributes:
        max_spans: longest run of spans (5 on Doc2Dial, 1 on Wizard of Wikipedia).
        score_by: a run of the best passage scores the sum of its begin and end `probabilities` (thesis) or `logits`
            (original code); `joint`: a run of any passage scores log p(passage) + log p(begin) + log p(end).
        max_passages: passages that a dialogue may choose from; the first ones of a longer document.
        most: most passages of an answer from several passages.
        select_by: what must exceed γ for a passage to be one of them.
    """

    max_spans: int = 5
    score_by: ScoreBy = "probabilities"
    max_passages: int = 20
    most: int = 4
    select_by: SelectBy = "probabilities"

    def __post_init__(self) -> None:
        if min(self.max_spans, self.max_passages, self.most) < 1:
            raise ConfigError(f"search: expected max_spans, max_passages and most of at least 1, got {self}")
        if self.score_by not in get_args(ScoreBy):
            raise ConfigError(f"search.score_by: expected one of {', '.join(get_args(ScoreBy))}, got {self.score_by!r}")
        check_select_by(self.select_by, "search.select_by")


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


def passages_above(
    scores: Sequence[float], threshold: float | None, most: int, passages: Sequence[int]
) -> tuple[int, ...]:
    """The passages whose score exceeds the threshold, the highest first; the best one in any case.

    Args:
        scores: probabilities or logits of the passages of one dialogue.
        threshold: γ; None keeps the best passage alone.
        most: at most so many.
        passages: what the passages are called.
    """
    order = sorted(range(len(passages)), key=lambda i: -scores[i])
    above = [i for i in order[:most] if threshold is not None and scores[i] > threshold]
    return tuple(passages[i] for i in above or order[:1])


@dataclass(frozen=True)
class Threshold:
    """A tuned γ.

    Attributes:
        value: γ, in [0, 1); of logits any number.
        f1: mean over dialogues of the F1 between the passages above γ and the gold passages.
    """

    value: float
    f1: float


def tune_threshold(
    scores: Sequence[Sequence[float]],
    gold: Sequence[frozenset[int]],
    most: int,
    candidates: int = 200,
    select_by: SelectBy = "probabilities",
) -> Threshold | None:
    """The γ with the highest mean F1 between the predicted and the gold set of passages; of equals the highest γ.

    Source of the criterion: INSCIT's PI-F1 (thesis, section 5.4.2). At most `candidates` quantiles of the observed
    scores are tried, and γ just below 1 unless they are logits (the best passage alone, as at the highest score).

    Args:
        scores: of the passages of each dialogue, passage 0 first.
        gold: the gold passages of each dialogue, at least one.
        most: at most so many passages an answer.
        candidates: quantiles to try.
        select_by: what the scores are.

    Returns:
        None without any dialogue.
    """
    if not gold:
        return None
    seen = torch.tensor([p for row in scores for p in row], dtype=torch.float64)
    steps = torch.linspace(0, 1, min(candidates, len(seen)), dtype=torch.float64)
    highest = set() if select_by == "logits" else {1.0 - 2.0**-20}
    tried = sorted({*torch.quantile(seen[: 1 << 24], steps).tolist(), *highest})

    def f1(value: float) -> float:
        total = 0.0
        for row, right in zip(scores, gold, strict=True):
            found = passages_above(row, value, most, range(len(row)))
            total += 2 * len(right.intersection(found)) / (len(right) + len(found))
        return total / len(gold)

    best = max((f1(value), value) for value in tried)
    return Threshold(best[1], best[0])
