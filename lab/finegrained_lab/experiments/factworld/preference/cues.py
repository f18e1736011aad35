"""What orders pairs of answers as an annotator does: cues that need no training, the oracle, and the ceiling."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from finegrained_rlhf.factworld.annotate import FACT_RATE, SENTENCE_RATE, SUB_SENTENCE_RATE
from finegrained_rlhf.factworld.oracle import Judgement
from finegrained_rlhf.feedback.records import FIRST, PAIR_ORDER, TIE

Order = Callable[[Judgement, Judgement], float]
"""Above 0 where the first answer is held to be the better one, below 0 where the second is, 0 where neither."""


def error_counts(judgement: Judgement, noise: float) -> NDArray[np.float64]:
    """How many errors an annotator finds in a judged answer: P(n) for n = 0 … N, float64 [N + 1].

    N is the number of labels that the annotator gives: sub-sentences, sentences and asked facts. They are given
    independently, each wrong at its rate (`annotate.mislabel`), so the count is a sum of N coins.

    Args:
        judgement: the oracle's.
        noise: dial of the annotator.
    """
    wrong = {piece.sentence for piece in judgement.sub_sentences if piece.c2 is not None}
    labels = [
        *((piece.c1 is not None, SUB_SENTENCE_RATE) for piece in judgement.sub_sentences),
        *((sentence in wrong, SENTENCE_RATE) for sentence in range(len(judgement.sentences))),
        *((not covered, FACT_RATE) for covered in judgement.given),
    ]
    counts = np.ones(1)
    for error, rate in labels:
        probability = 1.0 - rate * noise if error else rate * noise
        counts = np.convolve(counts, [1.0 - probability, probability])
    return counts


def ceiling(noise: float) -> Order:
    """The best order that anybody can give without knowing the annotator's mistakes.

    P(first is preferred) − P(second is preferred), from the true errors of both and the rates of mistake. It prefers
    the shorter of two answers with equally many errors: fewer words leave fewer places to mark by mistake.
    """

    def order(first: Judgement, second: Judgement) -> float:
        a, b = error_counts(first, noise), error_counts(second, noise)
        both = np.outer(a, b)
        gap = float(np.triu(both, 1).sum() - np.tril(both, -1).sum())
        return gap if abs(gap) > 1e-12 else 0.0

    return order


CUES: Mapping[str, Order] = {
    "shorter": lambda first, second: len(second.text.split()) - len(first.text.split()),
    "fewer_sentences": lambda first, second: len(second.sentences) - len(first.sentences),
    "fewer_sub_sentences": lambda first, second: len(second.sub_sentences) - len(first.sub_sentences),
    "oracle": lambda first, second: second.errors - first.errors,
}
"""Orders that need no training: fewer words, sentences, sub-sentences; and fewer true errors."""


def pair_gaps(scores: Sequence[float]) -> tuple[float, ...]:
    """The differences, first − second, of the scores of four answers to one question, pair by pair."""
    return tuple(scores[i] - scores[j] for i, j in PAIR_ORDER)


def judged_gaps(judged: Sequence[Judgement], order: Order) -> tuple[float, ...]:
    """What `order` says of four answers to one question, pair by pair."""
    return tuple(order(judged[i], judged[j]) for i, j in PAIR_ORDER)


def agreement(gaps: Sequence[Sequence[float]], preferences: Sequence[Sequence[int | None]]) -> float:
    """Share of the decided pairs that are ordered as preferred; a pair with gap 0 counts one half, as a coin would.

    Args:
        gaps: of each record, one a pair, above 0 for the first answer.
        preferences: of each record, as the feedback file has them; ties and unjudged pairs are left out.

    Raises:
        ValueError: no pair is decided.
    """
    decided = [
        np.sign(gap) * (1 if value == FIRST else -1)
        for row, values in zip(gaps, preferences, strict=True)
        for gap, value in zip(row, values, strict=True)
        if value not in (None, TIE)
    ]
    if not decided:
        raise ValueError("no pair is decided")
    return float(np.mean([(sign + 1.0) / 2.0 for sign in decided]))
