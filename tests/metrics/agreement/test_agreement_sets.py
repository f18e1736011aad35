"""Set F1 of missing sentences and token F1 of corrections: hand numbers, naive counts, scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import f1_score

from finegrained_rlhf.metrics.agreement import MatchCounts, correction_f1, pooled_f1, set_matches
from finegrained_rlhf.text.scores import word_tokens


def test_sets_by_hand() -> None:
    """Two of three and three sentences in common: 2 · 2 / 6."""
    first, second = {(1, 2), (1, 3), (4, 0)}, {(1, 2), (4, 0), (4, 1)}
    assert set_matches(first, second).f1 == pytest.approx(2 / 3)
    assert set_matches(first, second) == MatchCounts(2, 3, 3)
    assert pooled_f1([set_matches(first, second), set_matches([], [])]) == pytest.approx(2 / 3)


def test_two_people_who_find_nothing_missing_agree() -> None:
    assert set_matches([], set()).f1 == 1.0
    assert set_matches([], [(1, 1)]).f1 == set_matches([(1, 1)], []).f1 == 0.0


def test_an_element_counts_once() -> None:
    assert set_matches([("答え", 1), ("答え", 1)], [("答え", 1)]).f1 == 1.0


def test_sets_equal_the_naive_count_and_scikit_learn() -> None:
    rng = np.random.default_rng(6)
    for _trial in range(200):
        first, second = (rng.random(12) < rng.choice([0.0, 0.2, 0.7]) for _ in range(2))
        ours, theirs = (np.flatnonzero(flags).tolist() for flags in (first, second))
        same = sum(1 for a in ours for b in theirs if a == b)
        expected = 2 * same / (len(ours) + len(theirs)) if ours or theirs else 1.0
        assert set_matches(ours, theirs).f1 == pytest.approx(expected) == set_matches(theirs, ours).f1
        assert expected == pytest.approx(f1_score(first, second, zero_division=1.0))


@pytest.mark.parametrize(("first", "second"), [("ab", {"a"}), ({"a"}, b"a"), ([[1]], [(1,)])])
def test_what_is_no_set_is_refused(first: object, second: object) -> None:
    with pytest.raises(ValueError, match="element"):
        set_matches(first, second)


def test_corrections_by_hand() -> None:
    """the, cat, sat, "." and a, cat, sat, "!": two in common of four and four."""
    assert correction_f1("The cat sat.", "A cat sat!") == pytest.approx(0.5)
    assert correction_f1("no no yes", "no") == pytest.approx(2 * 1 / 4)  # with multiplicity
    assert correction_f1("", "") == correction_f1(" ", "") == 1.0
    assert correction_f1("", "a cat") == 0.0


def test_corrections_equal_the_naive_count() -> None:
    rng = np.random.default_rng(7)
    words = ["Zürich", "is", "a", "город", ".", "🙂", "2"]
    for _trial in range(200):
        first, second = (" ".join(rng.choice(words, size=rng.integers(0, 9))) for _ in range(2))
        ours, theirs = word_tokens(first), word_tokens(second)
        left, overlap = list(theirs), 0
        for token in ours:
            if token in left:
                left.remove(token)
                overlap += 1
        expected = 2 * overlap / (len(ours) + len(theirs)) if ours or theirs else 1.0
        assert correction_f1(first, second) == pytest.approx(expected) == correction_f1(second, first)
