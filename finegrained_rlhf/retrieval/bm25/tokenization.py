"""Words of texts: lower case, without stop words, stemmed, and numbered.

What it makes of a text is close to Lucene's English analyzer with the stemmer `porter` and the stop words `english`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

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
