"""Overlap of two texts in words, as SQuAD's evaluation counts it."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lower case, without ASCII punctuation and the articles a, an, the; words joined with one space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def bag_f1(first: Sequence[str], second: Sequence[str]) -> float:
    """F1 of two bags of words: 2 · |overlap| / (|first| + |second|), with multiplicity.

    Two empty bags give 1, one empty bag 0.
    """
    if not first or not second:
        return float(not first and not second)
    overlap = (Counter(first) & Counter(second)).total()
    return 2.0 * overlap / (len(first) + len(second))


def token_f1(first: str, second: str) -> float:
    """Word F1 of two texts after `normalise`; symmetric, in [0, 1]; 1 when both are empty."""
    return bag_f1(normalise(first).split(), normalise(second).split())


def exact_match(first: str, second: str) -> bool:
    """Whether two texts are equal after `normalise`."""
    return normalise(first) == normalise(second)
