"""Ordered pairs of answers, from which models of whole answers learn, and how completeness compares sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.feedback.records import FIRST, SECOND, TIE, FeedbackRecord, pair_order

Matching = Literal["original", "token_f1"]


@dataclass(frozen=True)
class CompletenessConfig(Settings):
    """How sub-sentences are mapped to passage sentences.

    Attributes:
        matching: `original`: windows of words compared by difflib's quick ratio, as in the original code; `token_f1`:
            the sentence with the highest word F1, as the thesis says.
    """

    matching: Matching = "original"


@dataclass(frozen=True)
class AnswerPair:
    """Two answers to one question, one better than the other.

    Attributes:
        record: the question, its passages and all four answers.
        better: index (from 0) of the better answer in `record.predictions`.
        worse: index of the other.
    """

    record: FeedbackRecord
    better: int
    worse: int

    @property
    def better_text(self) -> str:
        """The better answer."""
        return self.record.predictions[self.better]

    @property
    def worse_text(self) -> str:
        """The worse answer."""
        return self.record.predictions[self.worse]


@dataclass(frozen=True)
class PairSet:
    """The pairs of a file with what was left out.

    Attributes:
        pairs: ordered pairs, in the order of the records and of `pair_order`.
        examples: records that were compared, those with ties only included.
        first: comparisons won by the answer with the lower number.
        second: comparisons won by the other.
        ties: comparisons dropped because neither is better.
    """

    pairs: tuple[AnswerPair, ...]
    examples: int
    first: int
    second: int
    ties: int


def ordered_pairs(record: FeedbackRecord, preferences: Sequence[int | None]) -> list[AnswerPair]:
    """The pairs that `preferences` (in the order of `pair_order`) order; ties and what nobody said are dropped."""
    pairs = []
    for (i, j), value in zip(pair_order(len(record.predictions)), preferences, strict=True):
        if value == FIRST:
            pairs.append(AnswerPair(record, i, j))
        elif value == SECOND:
            pairs.append(AnswerPair(record, j, i))
    return pairs


def pair_set(judged: Sequence[tuple[FeedbackRecord, Sequence[int | None]]]) -> PairSet:
    """The pairs of records with their preferences (in the order of `pair_order`), and how often each was decided."""
    values = [value for _, preferences in judged for value in preferences]
    pairs = tuple(pair for record, preferences in judged for pair in ordered_pairs(record, preferences))
    return PairSet(pairs, len(judged), values.count(FIRST), values.count(SECOND), values.count(TIE))
