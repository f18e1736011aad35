"""What an edit costs: Levenshtein's distance between draft and edited text over tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from finegrained_rlhf.core.generation.protocol import words_and_marks

EDIT = "edit"
"""The kind of event that a user's edit of a draft is."""
Tokenise = Callable[[str], Sequence[str]]


@dataclass(frozen=True)
class EditCost:
    """The cost of one edit.

    Attributes:
        distance: tokens to insert, delete or replace.
        longest: tokens of the longer of the two texts.
    """

    distance: int
    longest: int

    @property
    def normalised(self) -> float:
        """Distance / longest, from 0 to 1; 0 where both are empty (Gao et al. 2024, appendix C)."""
        return self.distance / self.longest if self.longest else 0.0


def edit_cost(draft: str, edited: str, tokenise: Tokenise = words_and_marks) -> EditCost:
    """The cost c_t = Δ_edit(y_t, y'_t) of an edit (Gao et al. 2024, protocol 1).

    Args:
        draft: y_t.
        edited: y'_t.
        tokenise: a text's tokens; words and marks by default. White space then costs nothing.
    """
    left, right = list(tokenise(draft)), list(tokenise(edited))
    return EditCost(levenshtein(left, right), max(len(left), len(right)))


def levenshtein(left: Sequence[str], right: Sequence[str]) -> int:
    """The fewest insertions, deletions and replacements that make `right` of `left`.

    A column of the table of distances is kept as two bit vectors, in which steps go up and down, so that a token of
    `right` takes a few operations on integers of `len(left)` bits (Myers 1999, in the form of Hyyrö 2003).
    """
    if not left:
        return len(right)
    places: dict[str, int] = {}
    for i, token in enumerate(left):
        places[token] = places.get(token, 0) | 1 << i
    last, full = 1 << (len(left) - 1), (1 << len(left)) - 1
    up, down, distance = full, 0, len(left)  # vertical steps of +1 and −1
    for token in right:
        equal = places.get(token, 0)
        zero = (((equal & up) + up) ^ up) | equal | down
        right_up, right_down = down | (full & ~(zero | up)), up & zero
        distance += bool(right_up & last) - bool(right_down & last)
        right_up, right_down = (right_up << 1 | 1) & full, (right_down << 1) & full
        up, down = right_down | (full & ~(zero | right_up)), right_up & zero
    return distance
