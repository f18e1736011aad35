"""Edits of a text word by word: the least that makes one text of another, and where in the first one it falls.

Words and marks are compared, as spelled; white space is no change.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence

_WORD = re.compile(r"\w+|[^\w\s]")


def levenshtein(left: Sequence[str], right: Sequence[str]) -> int:
    """The fewest insertions, deletions and replacements that make `right` of `left`."""
    return [len(left), *_distances(left, right)][-1]


def begun_distance(left: Sequence[str], right: Sequence[str]) -> int:
    """The least `levenshtein(left, right[:j])` over j: what a text that goes on has cost so far, whatever follows.

    It is 0 for the beginning of `right` itself, at most `levenshtein(left, right)`, and never falls as `left` grows.
    """
    return min((len(left), *_distances(left, right)))


def _distances(left: Sequence[str], right: Sequence[str]) -> Iterator[int]:
    """The distance of `left` from right[:1], right[:2], …, `right`.

    A column of the table of distances is kept as two bit vectors, in which steps go up and down, so that a token of
    `right` takes a few operations on integers of `len(left)` bits (Myers 1999, in the form of Hyyrö 2003).
    """
    if not left:
        yield from range(1, len(right) + 1)
        return
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
        yield distance


def word_mass(draft: Sequence[str], edited: Sequence[str]) -> list[int]:
    """Of each word of a draft, how many words are changed at it; they add up to the distance exactly.

    Of the alignments with the fewest changes one is taken: from the front, an equal word stays, else the word is
    replaced where that is among the best, else it goes, else a word is put in. One that is replaced or gone counts 1;
    one that is put in counts 1 at the word before it, or at the first one. It takes time and memory in the product of
    the lengths.

    Returns:
        One number a word; one number, the words of `edited`, for a draft without a word.
    """
    n, m = len(draft), len(edited)
    rest = [[m - j for j in range(m + 1)]]  # rest[k][j]: distance of the last k words of the draft from edited[j:]
    for k in range(1, n + 1):
        below, row = rest[-1], [k] * (m + 1)
        for j in range(m - 1, -1, -1):
            same = draft[n - k] == edited[j]
            row[j] = below[j + 1] if same else 1 + min(below[j + 1], below[j], row[j + 1])
        rest.append(row)
    mass, i, j = [0] * max(n, 1), 0, 0
    while i < n or j < m:
        both = i < n and j < m
        if both and draft[i] == edited[j]:
            i, j = i + 1, j + 1
            continue
        here = rest[n - i][j]
        if both and here == 1 + rest[n - i - 1][j + 1]:
            mass[i], i, j = mass[i] + 1, i + 1, j + 1
        elif i < n and here == 1 + rest[n - i - 1][j]:
            mass[i], i = mass[i] + 1, i + 1
        else:
            mass[max(i - 1, 0)] += 1
            j += 1
    return mass


def edit_mass(draft: str, edited: str, spans: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Words changed in each segment of a draft (`word_mass`); they add up to the distance of the two texts exactly.

    A word outside of all segments counts in the one before it, or in the first one.

    Args:
        draft: what was written.
        edited: what became of it.
        spans: of the draft's segments, in their order.

    Returns:
        One number a segment; none where there is no segment.
    """
    words = list(_WORD.finditer(draft))
    mass, starts = [0] * len(spans), [start for start, _ in spans]
    if spans:
        places = [match.start() for match in words] or [0]
        for place, changed in zip(places, word_mass([m.group() for m in words], _WORD.findall(edited)), strict=True):
            mass[max(bisect_right(starts, place) - 1, 0)] += changed
    return tuple(mass)
