"""Words of texts, and postings: the terms of passages with their counts, and the weights that BM25 gives them.

Words are lower case, without stop words, stemmed, and numbered; what becomes of a text is close to Lucene's English
analyzer with the stemmer `porter` and the stop words `english`.

BM25 as in Lucene (Kamphuis et al. 2020): score(q, d) = Σ_{t in q} idf(t) · tf / (tf + k1 (1 − b + b · |d| / average)),
idf(t) = ln(1 + (N − df + ½) / (df + ½)); a term that the query repeats counts as often. The summands are *weights*;
they are computed here for any set of postings, always by the same operations, so that they are the same bits however
a corpus is cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.retrieval.arrays import StringTable

_WORD = re.compile(r"\w+(?:['’]\w+)*")
_POSSESSIVE = ("'s", "’s")
_UNSTEMMED = 2  # letters of the longest word that is not stemmed, as in Lucene; Snowball makes `u` of `us`
_MEMO = 2_000_000  # words whose number is remembered; the memory of more distinct ones would be the memory of an index
NONE = "none"


@dataclass(frozen=True)
class WordConfig:
    """What becomes of a word.

    Attributes:
        stemmer: `none`, or a language or algorithm of PyStemmer: `english` (Porter's second), `porter`, `german`, ….
        stop_words: words that are left out: `none`, `english` (Lucene's 33) or a list of words.
    """

    stemmer: str = "english"
    stop_words: str | Sequence[str] = "english"

    def __post_init__(self) -> None:
        if self.stemmer != NONE and self.stemmer not in _stemmers():
            raise ConfigError(f"stemmer: expected {NONE} or one of {', '.join(_stemmers())}, got {self.stemmer!r}")
        if isinstance(self.stop_words, str):
            if self.stop_words not in (NONE, "english"):
                raise ConfigError(f"stop_words: expected {NONE}, english or a list, got {self.stop_words!r}")
        else:
            object.__setattr__(self, "stop_words", tuple(self.stop_words))

    def term(self) -> Callable[[str], str | None]:
        """A function from a lower-case word to its term; None for a stop word."""
        stop = self._stopped()
        stem = _stem(self.stemmer)
        return lambda word: None if word in stop else stem(word)

    def terms(self, text: str) -> list[str]:
        """The terms of a text, in order."""
        terms = map(self.term(), bm25_words(text))
        return [term for term in terms if term is not None]

    def _stopped(self) -> frozenset[str]:
        if self.stop_words == NONE:
            return frozenset()
        if self.stop_words == "english":
            from bm25s.stopwords import STOPWORDS_EN

            return frozenset(STOPWORDS_EN)
        return frozenset(word.lower() for word in self.stop_words)


def bm25_words(text: str) -> list[str]:
    """The words of a text in lower case: runs of letters, digits and underscores, which an apostrophe may join.

    A final `'s` is left out.
    """
    words = _WORD.findall(text.lower())
    return [word[:-2] if word.endswith(_POSSESSIVE) else word for word in words]


def _stemmers() -> list[str]:
    import Stemmer

    return Stemmer.algorithms(aliases=False)


def _stem(name: str) -> Callable[[str], str]:
    if name == NONE:
        return str
    import Stemmer

    stem = Stemmer.Stemmer(name).stemWord
    return lambda word: stem(word) if len(word) > _UNSTEMMED else word


class _Memo(dict[str, int]):
    """Numbers of words, asked for once."""

    def __init__(self, find: Callable[[str], int]) -> None:
        self._find = find

    def __missing__(self, word: str) -> int:
        if len(self) >= _MEMO:
            self.clear()
        self[word] = number = self._find(word)
        return number

    def of(self, text: str) -> list[int]:
        return [number for number in map(self.__getitem__, bm25_words(text)) if number >= 0]


class GrowingVocabulary:
    """Numbers the terms of passages in the order in which they are first seen."""

    def __init__(self, config: WordConfig) -> None:
        self._term = config.term()
        self._numbers: dict[str, int] = {}
        self._memo = _Memo(self._number)
        self._handed_out = 0

    def __len__(self) -> int:
        return len(self._numbers)

    def numbers(self, texts: Sequence[str]) -> list[list[int]]:
        """The numbers of the terms of each text."""
        return [self._memo.of(text) for text in texts]

    def take_new(self) -> list[str]:
        """The terms that were numbered since the last call, in order."""
        new = list(islice(self._numbers, self._handed_out, None))
        self._handed_out = len(self._numbers)
        return new

    def vocabulary(self) -> list[str]:
        """All terms, in the order of their numbers."""
        return list(self._numbers)

    def restore(self, terms: Iterable[str]) -> None:
        """Number these terms as those of an earlier `take_new`."""
        for term in terms:
            self._numbers[term] = len(self._numbers)
        self._handed_out = len(self._numbers)

    def _number(self, word: str) -> int:
        term = self._term(word)
        return -1 if term is None else self._numbers.setdefault(term, len(self._numbers))


class KnownVocabulary:
    """Finds the numbers of terms in a finished vocabulary."""

    def __init__(self, config: WordConfig, table: StringTable) -> None:
        self._term, self._table = config.term(), table
        self._memo = _Memo(self._number)

    def numbers(self, texts: Sequence[str]) -> list[list[int]]:
        """The numbers of the known terms of each text; unknown ones are left out."""
        return [self._memo.of(text) for text in texts]

    def _number(self, word: str) -> int:
        term = self._term(word)
        return -1 if term is None else int(self._table.find([term])[0])


@dataclass(frozen=True)
class TermCounts:
    """How often which term stands in n passages; m = pairs of a passage and a term in it.

    Attributes:
        terms: int32 [m], numbers of the terms of passage 0 in ascending order, then those of passage 1, ….
        counts: uint16 [m], how often; 65,535 also for more.
        starts: int64 [n + 1], where the terms of each passage start.
        lengths: int32 [n], tokens of each passage.
    """

    terms: NDArray[np.int32]
    counts: NDArray[np.uint16]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.lengths)


@dataclass(frozen=True)
class Weighting:
    """What turns counts into weights: the statistics of the whole corpus and the two constants.

    Attributes:
        passages: N.
        average: mean tokens of a passage.
        frequencies: int64 [V], passages that have each term.
        k1: saturation of the counts.
        b: strength of the length normalisation.
    """

    passages: int
    average: float
    frequencies: NDArray[np.int64]
    k1: float
    b: float

    def weights(
        self, terms: NDArray[np.int32], counts: NDArray[np.uint16], lengths: NDArray[np.int32]
    ) -> NDArray[np.float32]:
        """fp32 [m]: the weight of each posting, computed in double precision.

        Args:
            terms: int32 [m].
            counts: uint16 [m], of the term in its passage.
            lengths: int32 [m], of that passage.
        """
        df = self.frequencies[terms].astype(np.float64)
        idf = np.log(1 + (self.passages - df + 0.5) / (df + 0.5))
        tf = counts.astype(np.float64)
        norm = self.k1 * ((1 - self.b) + self.b * lengths / (self.average or 1.0))
        return (idf * tf / (tf + norm)).astype(np.float32)


def count_terms(numbers: Sequence[Sequence[int]]) -> TermCounts:
    """Count the terms of passages.

    Args:
        numbers: for each passage the numbers of its tokens, in any order.
    """
    lengths = np.fromiter(map(len, numbers), np.int64, len(numbers))
    flat = np.fromiter(chain.from_iterable(numbers), np.int64, int(lengths.sum()))
    rows = np.repeat(np.arange(len(numbers), dtype=np.int64), lengths)
    keys, counts = np.unique(rows << 32 | flat, return_counts=True)
    starts = np.zeros(len(numbers) + 1, np.int64)
    np.cumsum(np.bincount(keys >> 32, minlength=len(numbers)), out=starts[1:])
    return TermCounts(
        (keys & 0xFFFFFFFF).astype(np.int32),
        np.minimum(counts, np.iinfo(np.uint16).max).astype(np.uint16),
        starts,
        lengths.astype(np.int32),
    )


def join_counts(parts: Sequence[TermCounts]) -> TermCounts:
    """The counts of all passages of several parts, one after the other."""
    offsets = np.cumsum([0, *(len(part.terms) for part in parts)])
    starts = [part.starts[:-1] + offset for part, offset in zip(parts, offsets, strict=False)]
    return TermCounts(
        np.concatenate([part.terms for part in parts]),
        np.concatenate([part.counts for part in parts]),
        np.concatenate([*starts, offsets[-1:]]),
        np.concatenate([part.lengths for part in parts]),
    )


@dataclass(frozen=True)
class Columns:
    """The weights of passages by term, compressed: those of term `terms[j]` are at `starts[j]` to `starts[j + 1]`.

    Attributes:
        terms: int32 [t], numbers of the terms that occur, ascending.
        starts: int64 [t + 1].
        rows: int32 [m], passages, ascending within a term.
        weights: fp32 [m].
    """

    terms: NDArray[np.int32]
    starts: NDArray[np.int64]
    rows: NDArray[np.int32]
    weights: NDArray[np.float32]


def invert(counts: TermCounts, weighting: Weighting) -> Columns:
    """Weigh the postings and sort them by term."""
    order = np.argsort(counts.terms, kind="stable")
    present, per_term = np.unique(counts.terms, return_counts=True)
    starts = np.zeros(len(present) + 1, np.int64)
    np.cumsum(per_term, out=starts[1:])
    rows = np.repeat(np.arange(len(counts), dtype=np.int32), np.diff(counts.starts))
    weights = weighting.weights(counts.terms, counts.counts, counts.lengths[rows])
    return Columns(present, starts, rows[order], weights[order])


def best_rows(scores: NDArray[np.float32], ranks: NDArray[np.int32], k: int) -> NDArray[np.int64]:
    """The rows of the k highest scores above 0, best first; of equal scores those of the highest rank.

    Args:
        scores: fp32 [n], at least 0.
        ranks: int32 [n], all different.
        k: at least 1.
    """
    rows = np.flatnonzero(scores)
    if len(rows) > k:
        positive = scores[rows]
        limit = np.partition(positive, len(rows) - k)[len(rows) - k]
        above, equal = rows[positive > limit], rows[positive == limit]
        wanted = k - len(above)
        if len(equal) > wanted:
            equal = equal[np.argpartition(ranks[equal], len(equal) - wanted)[len(equal) - wanted :]]
        rows = np.concatenate([above, equal])
    return rows[np.lexsort((ranks[rows], scores[rows]))[::-1]]


@dataclass(frozen=True)
class TermWeights:
    """The weights of one passage: int32 [t] terms and fp32 [t] weights."""

    terms: NDArray[np.int32]
    weights: NDArray[np.float32]


def pool_scores(queries: Sequence[Sequence[int]], passages: Sequence[TermWeights]) -> NDArray[np.float32]:
    """The score of every passage for every query.

    The weights of a query are summed in the order of its terms, in single precision, one at a time: as bm25s does in a
    search, so that both give the same bits, and no passage's score depends on which others stand beside it.

    Args:
        queries: for each of the Q queries the numbers of its terms, repeats included.
        passages: P passages.

    Returns:
        fp32 [Q, P].
    """
    lengths = np.fromiter(map(len, queries), np.int64, len(queries))
    flat = np.fromiter(chain.from_iterable(queries), np.int64, int(lengths.sum()))
    scores = np.zeros((len(queries), len(passages)), np.float32)
    if not len(flat) or not passages:
        return scores
    distinct, places = np.unique(flat, return_inverse=True)
    weights = np.zeros((len(distinct), len(passages)), np.float32)
    terms = np.concatenate([passage.terms for passage in passages])
    columns = np.repeat(np.arange(len(passages)), [len(passage.terms) for passage in passages])
    rows = np.minimum(np.searchsorted(distinct, terms), len(distinct) - 1)
    hit = distinct[rows] == terms
    weights[rows[hit], columns[hit]] = np.concatenate([passage.weights for passage in passages])[hit]
    longest_first = np.argsort(-lengths, kind="stable")
    starts = (np.cumsum(lengths) - lengths)[longest_first]
    ordered = np.zeros_like(scores)
    for position in range(int(lengths.max())):
        active = int(np.count_nonzero(lengths > position))
        ordered[:active] += weights[places[starts[:active] + position]]
    scores[longest_first] = ordered
    return scores
