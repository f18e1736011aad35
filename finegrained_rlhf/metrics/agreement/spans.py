"""Agreement of two people's spans on one text: exact, by overlap with one-to-one matching, and by character."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from numbers import Integral
from typing import Protocol

from finegrained_rlhf.metrics.agreement.counts import MatchCounts


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

    IoU = |a ∩ b| / |a ∪ b| in characters. The matching is a maximum bipartite one (augmenting paths, exact), so that
    its size depends neither on the order of the spans nor on who is first.

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
    if not 0.0 < threshold <= 1.0:
        raise ValueError(f"threshold must be in (0, 1], got {threshold}")
    _check(first, second)
    partners = [
        [j for j, b in enumerate(second) if (not typed or a.error_type == b.error_type) and _iou(a, b) >= threshold]
        for a in first
    ]
    return MatchCounts(_maximum_matching(partners), len(first), len(second))


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


def _maximum_matching(partners: Sequence[Sequence[int]]) -> int:
    """Size of the largest one-to-one matching; `partners` are the right nodes that each left node may take.

    Every left node looks, breadth first, for an alternating path to a free right node (Berge, 1957).
    """
    taken_by: dict[int, int] = {}  # right node: its left node
    for start in range(len(partners)):
        came_from: dict[int, int] = {}  # right node: the left node that reached it first
        queue = [start]
        for left in queue:
            fresh = [right for right in partners[left] if right not in came_from]
            came_from.update((right, left) for right in fresh)
            free = next((right for right in fresh if right not in taken_by), None)
            if free is not None:
                _take(free, start, came_from, taken_by)
                break
            queue.extend(taken_by[right] for right in fresh)
    return len(taken_by)


def _take(right: int, start: int, came_from: dict[int, int], taken_by: dict[int, int]) -> None:
    """Turn the path that ends at `right` around: every left node on it takes the right node after it."""
    left = came_from[right]
    while left != start:
        given_up = next(other for other, owner in taken_by.items() if owner == left)
        taken_by[right] = left
        right, left = given_up, came_from[given_up]
    taken_by[right] = left
