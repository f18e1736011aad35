"""How an answer is chosen from scores of passages and spans, the passages above γ, and γ tuned on answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import at_least

ScoreBy = Literal["probabilities", "logits", "joint"]
"""`joint` chooses passage and spans together; the others choose the best passage first."""


SelectBy = Literal["probabilities", "logits", "sigmoid"]
"""What γ is compared with: a passage's probability among those searched, its logit, or σ of its logit."""


@dataclass(frozen=True)
class SearchConfig(Settings):
    """How an answer is chosen.

    Attributes:
        max_spans: longest run of spans (5 on Doc2Dial, 1 on Wizard of Wikipedia).
        score_by: a run of the best passage scores the sum of its begin and end `probabilities` (thesis) or `logits`
            (original code); `joint`: a run of any passage scores log p(passage) + log p(begin) + log p(end).
        max_passages: passages that a dialogue may choose from; the first ones of a longer document.
        most: most passages of an answer from several passages.
        select_by: what must exceed γ for a passage to be one of them.
    """

    max_spans: Annotated[int, at_least(1)] = 5
    score_by: ScoreBy = "probabilities"
    max_passages: Annotated[int, at_least(1)] = 20
    most: Annotated[int, at_least(1)] = 4
    select_by: SelectBy = "probabilities"


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
    import torch

    probabilities = torch.tensor([p for row in scores for p in row], dtype=torch.float64)
    steps = torch.linspace(0, 1, min(candidates, len(probabilities)), dtype=torch.float64)
    highest = set() if select_by == "logits" else {1.0 - 2.0**-20}
    tried = sorted({*torch.quantile(probabilities[: 1 << 24], steps).tolist(), *highest})

    def f1(value: float) -> float:
        total = 0.0
        for row, right in zip(scores, gold, strict=True):
            predicted = passages_above(row, value, most, range(len(row)))
            total += 2 * len(right.intersection(predicted)) / (len(right) + len(predicted))
        return total / len(gold)

    best = max((f1(value), value) for value in tried)
    return Threshold(best[1], best[0])
