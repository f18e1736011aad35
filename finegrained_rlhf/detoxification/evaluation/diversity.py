"""How varied the continuations of a prompt are."""

from __future__ import annotations

from collections.abc import Sequence


def _grams(words: Sequence[str], n: int) -> list[tuple[str, ...]]:
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


def distinct_by_words(texts: Sequence[str], n: int) -> float | None:
    """Distinct n-grams of all texts over the words of all texts; None where there is no word.

    As the public code of DExperts has it, and the tables that follow it: the denominator does not depend on n, so that
    dist-3 tends to be below dist-2. Words are what single blanks separate, as there: a blank at the beginning of a text
    makes an empty word. No n-gram goes from one text to another; texts without a word do not count.
    """
    rows = [text.split(" ") for text in texts if text.strip()]
    count = sum(map(len, rows))
    return len({gram for row in rows for gram in _grams(row, n)}) / count if count else None


def distinct_by_ngrams(texts: Sequence[str], n: int) -> float | None:
    """Distinct n-grams of all texts over all their n-grams (Li et al., 2016); None where there is none."""
    grams = [gram for text in texts for gram in _grams(text.split(), n)]
    return len(set(grams)) / len(grams) if grams else None
