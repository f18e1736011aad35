"""Matches between what two people marked, and F1 of them: spans of one text, sets, and corrected texts.

Spans match where they are equal, where they overlap (one to one), or by character.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Protocol

import numpy as np

from finegrained_rlhf.metrics.detection import share
from finegrained_rlhf.text.scores import bag_f1, word_tokens


@dataclass(frozen=True)
class MatchCounts:
    """How many marks two people made and how many of them match one to one.

    Attributes:
        matched: pairs that match.
        first: marks of the first person (spans, characters or elements of a set).
        second: marks of the second.

    Raises:
        ValueError: a count is below 0, or more pairs match than one of them has marks.
    """

    matched: int
    first: int
    second: int

    def __post_init__(self) -> None:
        if not 0 <= self.matched <= min(self.first, self.second):
            raise ValueError(f"{self.matched} matches of {self.first} and {self.second} marks cannot be")

    @property
    def f1(self) -> float:
        """F1 = 2·matched / (first + second), in [0, 1]; the same whoever of the two is taken as the truth.

        Two empty sets give 1: two people who both mark nothing agree. One empty set gives 0.
        """
        return 2 * self.matched / (self.first + self.second) if self.first + self.second else 1.0

    def __add__(self, other: MatchCounts) -> MatchCounts:
        """The counts of two texts together."""
        return MatchCounts(self.matched + other.matched, self.first + other.first, self.second + other.second)


def pooled_f1(counts: Iterable[MatchCounts]) -> float | None:
    """Micro-averaged F1 = 2 Σ matched / Σ (first + second): every mark counts once, in whichever text it is.

    Texts in which both mark nothing change nothing. Without true negatives it is the limit of κ as the number of
    unmarked candidates grows (Hripcsak and Rothschild, 2005, Agreement, the F-measure, and reliability).

    Args:
        counts: of each text.

    Returns:
        A number in [0, 1]; None where nobody marked anything in any text, which is no evidence of agreement on marks.
    """
    total = sum(counts, MatchCounts(0, 0, 0))
    return share(2 * total.matched, total.first + total.second)


def set_matches(first: Collection[Hashable], second: Collection[Hashable]) -> MatchCounts:
    """The elements of two sets and those in both, for `pooled_f1` and `mean_f1`.

    Args:
        first: one person's elements, such as (passage, sentence), or (type, passage, sentence) where the type must
            agree too. An element that is given twice counts once.
        second: the other's.

    Raises:
        ValueError: an element is not hashable, or one of the two is a text, which would count as its characters.
    """
    if isinstance(first, str | bytes) or isinstance(second, str | bytes):
        raise ValueError("expected two sets of elements, got a text")
    try:
        first_set, second_set = frozenset(first), frozenset(second)
    except TypeError:
        raise ValueError("the elements of a set must be hashable") from None
    return MatchCounts(len(first_set & second_set), len(first_set), len(second_set))


def correction_f1(first: str, second: str) -> float:
    """Token F1 of two corrections of one answer: 2·overlap / (m + n) over their bags of `word_tokens`, in [0, 1].

    Upper and lower case are equal; articles and punctuation count, because corrections change them. Both begin with
    the same answer, so that people who change little and different things still score high: read it beside the F1 of
    each with the answer itself.

    Args:
        first: one person's corrected answer; may be empty.
        second: the other's.

    Returns:
        1 where both are empty (both left nothing of the answer), 0 where one is.
    """
    return bag_f1(word_tokens(first), word_tokens(second))


class MarkedSpan(Protocol):
    """What a span must offer, as `feedback.records.SpanError` does; offsets count code points of the text."""

    @property
    def start(self) -> int:
        """Offset of the first character."""

    @property
    def end(self) -> int:
        """Offset after the last character."""

    @property
    def error_type(self) -> str:
        """The type that was given to it."""


Matches = Callable[[Sequence[MarkedSpan], Sequence[MarkedSpan]], MatchCounts]


def exact_matches(first: Sequence[MarkedSpan], second: Sequence[MarkedSpan], *, typed: bool = True) -> MatchCounts:
    """Spans with the same start and end, one to one: Σ_s min(n_1s, n_2s) over different spans s.

    Args:
        first: one person's spans of a text.
        second: the other's of the same text.
        typed: whether the types must be equal too.

    Returns:
        The counts; their `f1` is the exact span F1, and 1 where both mark nothing.

    Raises:
        ValueError: a span is not 0 ≤ start < end.
    """
    _check(first, second)
    first_keys, second_keys = Counter(_keys(first, typed)), Counter(_keys(second, typed))
    return MatchCounts((first_keys & second_keys).total(), len(first), len(second))


def overlap_matches(
    first: Sequence[MarkedSpan], second: Sequence[MarkedSpan], *, typed: bool = True, threshold: float = 0.5
) -> MatchCounts:
    """The most pairs of spans that can be matched one to one where a pair needs IoU ≥ threshold.

    IoU = |a ∩ b| / |a ∪ b| in characters. The matching is a maximum bipartite one (Hopcroft and Karp, 1973, by scipy),
    so that its size depends neither on the order of the spans nor on who is first.

    Args:
        first: one person's spans of a text.
        second: the other's of the same text.
        typed: whether the types must be equal too.
        threshold: in (0, 1]; 1 asks for equal boundaries.

    Returns:
        The counts; their `f1` is the overlap span F1, and 1 where both mark nothing.

    Raises:
        ValueError: a span is not 0 ≤ start < end, or the threshold is outside (0, 1].
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    if not 0.0 < threshold <= 1.0:
        raise ValueError(f"threshold must be in (0, 1], got {threshold}")
    _check(first, second)
    fits = [[(not typed or a.error_type == b.error_type) and _iou(a, b) >= threshold for b in second] for a in first]
    partners = maximum_bipartite_matching(csr_array(fits), perm_type="column") if first and second else np.array([-1])
    return MatchCounts(int(np.count_nonzero(partners >= 0)), len(first), len(second))


def character_matches(first: Sequence[MarkedSpan], second: Sequence[MarkedSpan], *, typed: bool = True) -> MatchCounts:
    """Characters that both mark, |C_1 ∩ C_2|, of the characters C_1 and C_2 that each marks.

    A character that one person marks twice counts once, with `typed` once a type.

    Args:
        first: one person's spans of a text.
        second: the other's of the same text.
        typed: whether the types must be equal too.

    Returns:
        The counts, in characters; their `f1` is the character F1, and 1 where both mark nothing.

    Raises:
        ValueError: a span is not 0 ≤ start < end.
    """
    _check(first, second)
    first_characters, second_characters = _characters(first, typed), _characters(second, typed)
    return MatchCounts(len(first_characters & second_characters), len(first_characters), len(second_characters))


def matches_by_type(
    first: Sequence[MarkedSpan], second: Sequence[MarkedSpan], matches: Matches = exact_matches
) -> dict[str, MatchCounts]:
    """The counts of every type alone; with all types equal their sum is the typed count of all spans.

    Args:
        first: one person's spans of a text.
        second: the other's of the same text.
        matches: `exact_matches`, `overlap_matches` or `character_matches`, or one of them with other arguments.

    Returns:
        By type, in alphabetical order; types that neither uses are absent.

    Raises:
        ValueError: what `matches` raises.
    """
    types = sorted({span.error_type for span in (*first, *second)})
    return {
        kind: matches(
            [span for span in first if span.error_type == kind], [span for span in second if span.error_type == kind]
        )
        for kind in types
    }


def _check(*people: Sequence[MarkedSpan]) -> None:
    for spans in people:
        for span in spans:
            whole = isinstance(span.start, Integral) and isinstance(span.end, Integral)
            if not whole or not 0 <= span.start < span.end:
                raise ValueError(f"a span needs 0 <= start < end in whole characters, got {span.start}, {span.end}")


def _keys(spans: Sequence[MarkedSpan], typed: bool) -> list[Hashable]:
    return [(span.start, span.end, span.error_type if typed else None) for span in spans]


def _characters(spans: Sequence[MarkedSpan], typed: bool) -> set[tuple[int, str | None]]:
    return {(i, span.error_type if typed else None) for span in spans for i in range(span.start, span.end)}


def _iou(a: MarkedSpan, b: MarkedSpan) -> float:
    common = max(0, min(a.end, b.end) - max(a.start, b.start))
    return common / (a.end - a.start + b.end - b.start - common)
