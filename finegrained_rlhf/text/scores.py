"""Overlap of two texts: in words, as SQuAD's evaluation counts it, and of their spans."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_AFTER_STOP = re.compile(r"(?<=[.])\s+")
_ROWS = 512  # first positions that are looked at together: bounds the memory of a very long passage


def word_tokens(text: str) -> list[str]:
    """Lower-case tokens of NLTK's word tokenizer (thesis, section 4.2.2).

    `nltk.word_tokenize` cuts sentences first, with a model that must be downloaded, only so that a full stop inside
    the text becomes a token of its own. Here the text is cut after every full stop before white space instead, in
    passages and answers alike: "Mr. Zappa" has a token "." too.
    """
    tokenizer = _tokenizer()
    return [token.lower() for part in _AFTER_STOP.split(text) for token in tokenizer.tokenize(part)]


@cache
def _tokenizer() -> Any:
    from nltk.tokenize import NLTKWordTokenizer  # not at the top: it takes seconds to import

    return NLTKWordTokenizer()


@dataclass(frozen=True)
class Span:
    """Tokens of a passage.

    Attributes:
        f1: with the answer, 0 to 1.
        start: its first token.
        end: one past its last; start = end = 0 where no token of the answer occurs.
    """

    f1: float
    start: int
    end: int


class SpanMatcher:
    """Compares the spans of many passages with one answer.

    Args:
        answer: its tokens, at least one.

    Raises:
        ValueError: there are none.
    """

    def __init__(self, answer: Sequence[str]) -> None:
        if not answer:
            raise ValueError("expected an answer of at least one token")
        self._size = len(answer)
        counts = Counter(answer)
        self._kinds = {token: kind for kind, token in enumerate(counts)}
        self._limits = list(counts.values())

    def bound(self, passage: Sequence[str]) -> float:
        """What no span's F1 exceeds: 2m / (m + n), m the tokens that passage and answer share, n the answer's length.

        A span with o shared tokens has at least o tokens, so that its F1 is at most 2o / (o + n), and o is at most m.
        """
        counts = Counter(kind for token in passage if (kind := self._kinds.get(token)) is not None)
        shared = sum(min(count, self._limits[kind]) for kind, count in counts.items())
        return 2.0 * shared / (shared + self._size)

    def best(self, passage: Sequence[str]) -> Span:
        """The span with the highest F1 = 2o / (length + n); of equal ones the first to start, then the shortest.

        An optimal span starts and ends on a token of the answer, because a token at an end that is not shared only
        makes it longer. So only pairs of such positions are compared: O(k²) for k of them.
        """
        positions, previous = self._positions(passage)
        best = Span(0.0, 0, 0)
        for first in range(0, len(positions), _ROWS):
            row, column, f1 = self._best_pair(positions[first:], previous[first:] - first)
            if f1 > best.f1:
                best = Span(f1, int(positions[first + row]), int(positions[first + column]) + 1)
        return best

    def _positions(self, passage: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where tokens of the answer stand, int64 [k], and for each of them which of the k frees its place, [k].

        A token that the answer has c times counts at most c times. The q-th position counts in a span that starts at
        the a-th exactly if fewer than c of its kind stand before it in the span: if the one of its kind c places
        earlier, number `previous[q]` (−1: there is none), comes before a.
        """
        import numpy as np  # here: most that count tokens compute no span

        kind_of, limits = self._kinds.get, self._limits
        matches = [(i, kind) for i, token in enumerate(passage) if (kind := kind_of(token)) is not None]
        previous: list[int] = []
        by_kind: list[list[int]] = [[] for _ in limits]
        for number, (_, kind) in enumerate(matches):
            positions, limit = by_kind[kind], limits[kind]
            previous.append(positions[-limit] if len(positions) >= limit else -1)
            positions.append(number)
        return np.array([i for i, _ in matches], dtype=np.int64), np.array(previous, dtype=np.int64)

    def _best_pair(self, positions: NDArray[np.int64], previous: NDArray[np.int64]) -> tuple[int, int, float]:
        """Numbers of the first and last position of the best span that starts at one of the first `_ROWS`, and its F1.

        A pair whose end comes before its start shares nothing, so that it needs no mask.
        """
        import numpy as np

        numbers = np.arange(len(positions))
        starts = numbers[:_ROWS, None]
        counts = previous < starts
        counts &= numbers >= starts
        shared = counts.cumsum(axis=1, dtype=np.int32)
        sizes = np.abs(positions - positions[:_ROWS, None])
        sizes += 1 + self._size
        half = shared / sizes
        row, column = divmod(int(half.argmax()), half.shape[1])
        return row, column, 2.0 * float(half[row, column])


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
