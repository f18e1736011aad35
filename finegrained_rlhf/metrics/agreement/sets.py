"""Agreement on sets (sentences that an answer should have used) and on corrected texts."""

from __future__ import annotations

from collections.abc import Collection, Hashable

from finegrained_rlhf.metrics.agreement.counts import MatchCounts
from finegrained_rlhf.text.scores import bag_f1, word_tokens


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


def set_f1(first: Collection[Hashable], second: Collection[Hashable]) -> float:
    """F1 of two sets, 2·|A ∩ B| / (|A| + |B|) (Dice, 1945), in [0, 1].

    Two empty sets give 1: two people who both find nothing missing agree. One empty set gives 0.

    Args:
        first: one person's elements, as for `set_matches`.
        second: the other's.

    Raises:
        ValueError: what `set_matches` raises.
    """
    return set_matches(first, second).f1


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
