"""Words changed in the segments of a text: they add up to the distance, and a text that goes on never gets cheaper."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finegrained_rlhf.rl.credit import corrections
from finegrained_rlhf.text.edits import begun_distance, edit_mass, levenshtein, word_mass

WORDS = st.lists(st.sampled_from("abcd"), max_size=9)


def table(left: list[str], right: list[str]) -> list[list[int]]:
    """The whole table of distances, by its definition."""
    rows = [list(range(len(right) + 1))]
    for i, word in enumerate(left, start=1):
        row = [i]
        for j, other in enumerate(right, start=1):
            row.append(min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (word != other)))
        rows.append(row)
    return rows


@given(WORDS, WORDS)
def test_distances_are_those_of_the_whole_table(left: list[str], right: list[str]) -> None:
    last = table(left, right)[-1]
    assert levenshtein(left, right) == last[-1] and begun_distance(left, right) == min(last)
    assert sum(word_mass(left, right)) == last[-1] and len(word_mass(left, right)) == max(len(left), 1)


@given(WORDS, WORDS, st.data())
def test_segments_add_up_and_payments_too(left: list[str], right: list[str], data: st.DataObject) -> None:
    draft, edited = " ".join(left), " ".join(right)
    borders = sorted(data.draw(st.sets(st.integers(0, len(draft)), max_size=3)) | {0})
    spans = list(zip(borders, [*borders[1:], len(draft)], strict=True))
    assert -sum(edit_mass(draft, edited, spans)) == -levenshtein(left, right)
    potentials = [-begun_distance(left[:k], right) for k in range(1, len(left) + 1)]
    paid = corrections(potentials, -levenshtein(left, right))
    assert sum(paid) == -levenshtein(left, right)  # exactly: whole numbers
    assert all(one in (0, -1) for one in paid[:-1]) and paid[-1] <= 0  # nothing is ever taken back


@pytest.mark.parametrize(
    ("draft", "edited", "mass"),
    [
        ("a b c", "a b c", [0, 0, 0]),
        ("a b c", "a x c", [0, 1, 0]),
        ("a b c", "a c", [0, 1, 0]),
        ("a c", "a x y c", [2, 0]),  # behind the word before
        ("b", "x y b", [2]),  # before the first word: at it
        ("", "x y", [2]),  # an empty draft is not free
        ("a b", "", [1, 1]),
        ("a b", "b", [1, 0]),
        ("a a b", "a b", [0, 1, 0]),  # of equal alignments the one whose equal words come first
    ],
)
def test_the_canonical_alignment_by_hand(draft: str, edited: str, mass: list[int]) -> None:
    assert word_mass(draft.split(), edited.split()) == mass


def test_words_count_where_they_stand() -> None:
    draft = "  Hello! I write. Bye"
    assert edit_mass(draft, "Hello! We write. Bye", [(2, 8), (9, 17), (18, 21)]) == (0, 1, 0)
    assert edit_mass(draft, "I write. Bye now.", [(9, 17)]) == (4,)  # all others fall to the one segment
    assert edit_mass("", "so it is", [(0, 0)]) == (3,) and edit_mass("", "so it is", []) == ()
