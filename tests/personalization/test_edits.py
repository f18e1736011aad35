"""The edit distance against a naive table, and what an edit costs."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finegrained_rlhf.personalization.span_feedback import edit_cost
from finegrained_rlhf.text.edits import levenshtein


def table(left: list[str], right: list[str]) -> int:
    rows = [[i + j if not i or not j else 0 for j in range(len(right) + 1)] for i in range(len(left) + 1)]
    for i, a in enumerate(left, start=1):
        for j, b in enumerate(right, start=1):
            rows[i][j] = min(rows[i - 1][j] + 1, rows[i][j - 1] + 1, rows[i - 1][j - 1] + (a != b))
    return rows[-1][-1]


words = st.lists(st.sampled_from("abcd"), max_size=12)


@given(words, words)
def test_the_distance_is_that_of_the_table(left: list[str], right: list[str]) -> None:
    assert levenshtein(left, right) == table(left, right) == levenshtein(right, left)


def test_texts_longer_than_a_machine_word() -> None:
    rng = random.Random(0)
    left = [rng.choice("abcdefgh") for _ in range(150)]
    right = [word for word in left if rng.random() > 0.2] + ["z"] * 7
    assert levenshtein(left, right) == table(left, right)


@pytest.mark.parametrize(
    ("draft", "edited", "distance", "longest"),
    [
        ("", "", 0, 0),
        ("kitten", "", 1, 1),
        ("The cat sat.", "The cat sat.", 0, 4),
        ("The cat sat.", "The  cat\nsat .", 0, 4),  # white space is no token
        ("You need a ticket.", "- you need tickets", 5, 5),  # You → "- you" is 2, "a ticket ." → "tickets" 3
    ],
)
def test_costs_worked_by_hand(draft: str, edited: str, distance: int, longest: int) -> None:
    cost = edit_cost(draft, edited)
    assert (cost.distance, cost.longest) == (distance, longest)
    assert cost.normalised == (distance / longest if longest else 0.0)


def test_other_tokens() -> None:
    assert edit_cost("abc", "abd", list).distance == 1 and edit_cost("abc", "abd").normalised == 1.0
