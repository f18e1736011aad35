"""How varied the continuations of a prompt are, and how much one repeats itself. Knows words, nothing else."""

from __future__ import annotations

from collections.abc import Sequence


def _grams(words: Sequence[str], n: int) -> list[tuple[str, ...]]:
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


def distinct_by_words(texts: Sequence[str], n: int) -> float | None:
    """Distinct n-grams of all texts over the words of all texts; None where there is no word.

    As the public code of DExperts has it, and the tables that follow it: the denominator does not depend on n, so that
    dist-3 tends to be below dist-2. Words are what white space separates; no n-gram goes from one text to another.
    """
    rows = [text.split() for text in texts]
    count = sum(map(len, rows))
    return len({gram for row in rows for gram in _grams(row, n)}) / count if count else None


def distinct_by_ngrams(texts: Sequence[str], n: int) -> float | None:
    """Distinct n-grams of all texts over all their n-grams (Li et al., 2016); None where there is none."""
    grams = [gram for text in texts for gram in _grams(text.split(), n)]
    return len(set(grams)) / len(grams) if grams else None


def repeated_share(text: str, n: int = 3) -> float:
    """Share of a text's n-grams of words that occurred in it before; 0 for a text of fewer than n words."""
    grams = _grams(text.split(), n)
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0
