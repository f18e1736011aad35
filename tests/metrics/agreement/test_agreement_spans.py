"""Span agreement: hand numbers, all matchings tried one by one, and SciPy's assignment."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import f1_score

from finegrained_rlhf.feedback.records import SpanError
from finegrained_rlhf.metrics.agreement import (
    MatchCounts,
    character_matches,
    exact_matches,
    matches_by_type,
    overlap_matches,
    pooled_f1,
)

TYPES = ["Irrelevant", "Wrong-Grounding", "不連貫"]
WAYS = [exact_matches, overlap_matches, character_matches]


def spans(*marks: tuple[int, int, str]) -> list[SpanError]:
    return [SpanError(*mark) for mark in marks]


def random_spans(rng: np.random.Generator, length: int = 20) -> list[SpanError]:
    """Up to five spans, which may overlap and come twice, so that matchings compete."""
    found = []
    for _ in range(rng.integers(0, 6)):
        start = int(rng.integers(length - 1))
        found.append(SpanError(start, int(rng.integers(start + 1, min(length, start + 8) + 1)), str(rng.choice(TYPES))))
    return found


def fits(a: SpanError, b: SpanError, typed: bool, threshold: float) -> bool:
    ours, theirs = set(range(a.start, a.end)), set(range(b.start, b.end))
    return (a.error_type == b.error_type or not typed) and len(ours & theirs) / len(ours | theirs) >= threshold


def most_pairs(first: list[SpanError], second: list[SpanError], typed: bool, threshold: float) -> int:
    """Tries for the first span every partner, and none."""
    if not first:
        return 0
    best = most_pairs(first[1:], second, typed, threshold)
    for j, other in enumerate(second):
        if fits(first[0], other, typed, threshold):
            best = max(best, 1 + most_pairs(first[1:], second[:j] + second[j + 1 :], typed, threshold))
    return best


def test_by_hand() -> None:
    first = spans((0, 10, "Irrelevant"), (20, 30, "Wrong-Grounding"), (40, 44, "Irrelevant"))
    second = spans((0, 10, "Irrelevant"), (22, 30, "Irrelevant"))
    # one equal span of 3 and 2; 8/10 overlap with other types; 10 + 8 of 24 and 18 characters
    assert exact_matches(first, second) == MatchCounts(1, 3, 2)
    assert exact_matches(first, second).f1 == pytest.approx(0.4)
    assert overlap_matches(first, second) == MatchCounts(1, 3, 2)
    assert overlap_matches(first, second, typed=False) == MatchCounts(2, 3, 2)
    assert overlap_matches(first, second, typed=False).f1 == pytest.approx(0.8)
    assert character_matches(first, second, typed=False) == MatchCounts(18, 24, 18)
    assert character_matches(first, second) == MatchCounts(10, 24, 18)
    assert matches_by_type(first, second) == {
        "Irrelevant": MatchCounts(1, 2, 2),
        "Wrong-Grounding": MatchCounts(0, 1, 0),
    }


def test_half_an_overlap_is_enough() -> None:
    """[0, 2) and [0, 4) have IoU 1/2; [0, 3) and [1, 4) too; [0, 10) and [0, 4) have 4/10."""
    for a, b, pairs in (((0, 2), (0, 4), 1), ((0, 3), (1, 4), 1), ((0, 10), (0, 4), 0), ((0, 2), (2, 4), 0)):
        assert overlap_matches(spans((*a, "x")), spans((*b, "x"))).matched == pairs


def test_one_span_is_no_match_for_two() -> None:
    """Each half of [0, 4) has IoU 1/2 with it, and only one of them is matched."""
    whole, halves = spans((0, 4, "x")), spans((0, 2, "x"), (2, 4, "x"))
    assert overlap_matches(whole, halves) == MatchCounts(1, 1, 2)
    assert character_matches(whole, halves).f1 == 1.0


def test_a_greedy_matching_would_lose_a_pair() -> None:
    """The first of one fits both of the other, the second only the first of them."""
    first, second = spans((0, 6, "x"), (0, 3, "x")), spans((0, 5, "x"), (0, 8, "x"))
    assert overlap_matches(first, second).matched == 2
    assert overlap_matches(first, second[::-1]).matched == 2


def test_a_long_chain_of_rivals_is_matched_whole() -> None:
    """IoU 1/3 with both neighbours; taken from the far end every span must give way, 1100 deep."""
    first = spans(*((10 * i, 10 * i + 10, "x") for i in range(1100)))
    second = spans(*((10 * i + 5, 10 * i + 15, "x") for i in range(1099)), (5, 9, "x"))
    assert overlap_matches(first, second, threshold=0.33).matched == 1100


def test_characters_are_counted_once() -> None:
    first, second = spans((0, 6, "a"), (3, 9, "a"), (0, 3, "b")), spans((0, 9, "a"))
    assert character_matches(first, second) == MatchCounts(9, 12, 9)
    assert character_matches(first, second, typed=False) == MatchCounts(9, 9, 9)


def test_equal_boundaries_of_two_types_match_one_to_one() -> None:
    first, second = spans((0, 3, "a"), (0, 3, "b")), spans((0, 3, "a"))
    assert exact_matches(first, second, typed=False) == MatchCounts(1, 2, 1)


@pytest.mark.parametrize("typed", [True, False])
def test_equal_the_naive_counts_on_random_spans(typed: bool) -> None:
    rng = np.random.default_rng(3)
    for _trial in range(200):
        first, second = random_spans(rng), random_spans(rng)
        threshold = float(rng.choice([0.2, 0.5, 0.75, 1.0]))
        found = overlap_matches(first, second, typed=typed, threshold=threshold)
        assert found == MatchCounts(most_pairs(first, second, typed, threshold), len(first), len(second))
        exact = exact_matches(first, second, typed=typed)
        assert exact == overlap_matches(first, second, typed=typed, threshold=1.0)
        assert exact.matched <= overlap_matches(first, second, typed=typed).matched
        ours, theirs = (
            np.array([[[s.start <= i < s.end and (s.error_type == t or not typed) for i in range(20)] for t in TYPES]
                      for s in person] or np.zeros((1, len(TYPES), 20), bool)).any(axis=0)[: None if typed else 1]
            for person in (first, second)
        )  # fmt: skip
        characters = character_matches(first, second, typed=typed)
        assert characters == MatchCounts(int((ours & theirs).sum()), int(ours.sum()), int(theirs.sum()))
        if ours.any() or theirs.any():
            assert characters.f1 == pytest.approx(f1_score(ours.ravel(), theirs.ravel()))


def test_matching_is_scipys_assignment() -> None:
    rng = np.random.default_rng(4)
    for _trial in range(100):
        first, second = ([s for _ in range(4) for s in random_spans(rng)] for _ in range(2))
        if not first or not second:
            continue
        gain = np.array([[fits(a, b, False, 0.4) for b in second] for a in first], dtype=int)
        rows, columns = linear_sum_assignment(gain, maximize=True)
        assert overlap_matches(first, second, typed=False, threshold=0.4).matched == gain[rows, columns].sum()


@pytest.mark.parametrize("way", [*WAYS, partial(overlap_matches, threshold=0.3)])
def test_types_add_up_and_people_are_alike(way: object) -> None:
    rng = np.random.default_rng(5)
    for _trial in range(100):
        first, second = random_spans(rng), random_spans(rng)
        total = sum(matches_by_type(first, second, way).values(), MatchCounts(0, 0, 0))
        assert total == way(first, second)
        back = way(second, first)
        assert (back.matched, back.first, back.second) == (total.matched, total.second, total.first)
        shuffled = [first[i] for i in rng.permutation(len(first))]
        assert way(shuffled, second) == total


@pytest.mark.parametrize("way", WAYS)
def test_two_people_who_mark_nothing_agree(way: object) -> None:
    assert way([], []).f1 == 1.0
    assert way(spans((0, 1, "a")), []).f1 == 0.0
    assert way(spans((0, 1, "a")), spans((0, 1, "a"))).f1 == 1.0
    assert matches_by_type([], [], way) == {}


def test_f1_over_texts() -> None:
    """F1 1 of nothing, 1 of one span each, 0 of three and one: pooled 2 · 1 / 6."""
    counts = [MatchCounts(0, 0, 0), MatchCounts(1, 1, 1), MatchCounts(0, 3, 1)]
    assert pooled_f1(counts) == pytest.approx(1 / 3)
    assert pooled_f1(counts[:1]) is None and pooled_f1([]) is None


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mark", [(3, 3), (4, 3), (-1, 2), (0.0, 2.0), (0, None)])
def test_broken_spans_are_refused(way: object, mark: tuple) -> None:
    for first, second in ((spans((*mark, "a")), []), ([], spans((*mark, "a")))):
        with pytest.raises(ValueError, match="0 <= start < end"):
            way(first, second)


def test_other_bad_input_is_refused() -> None:
    for threshold in (0.0, -1.0, 1.1, float("nan")):
        with pytest.raises(ValueError, match="threshold"):
            overlap_matches([], [], threshold=threshold)
    for counts in ((2, 1, 3), (-1, 0, 0)):
        with pytest.raises(ValueError, match="cannot be"):
            MatchCounts(*counts)
