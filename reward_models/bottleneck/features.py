"""What the bottleneck reads: a question with its passages, and how far each segment of an answer says their sentences.

Vectors of a frozen encoder tell which sentences the question needs. All that is read of an answer is what it shares
with the sentences: words (weighted by how few of the sentences have them), word order, and names, numbers and dates.
Words of the question count as said already, so that restating it shares nothing. Length and place of a segment are
never read. Each feature has a sign: what a head may make of it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finegrained_rlhf.text.facts import content_words, facts_of, plain, stands_in

Array = NDArray[np.float64]
Encode = Callable[[Sequence[str]], Array]
"""Unit vectors of texts, [n, D]."""

NEED = 17
RELEVANCE = {"copied": 1, "known": -1, "said": -1, "needed": -1, "rank": -1, "fresh": -1, "repeated": 1, "mean": -1}
FACTUALITY = {"order": -1, "best": -1, "numbers": 1, "names": 1, "elsewhere": 1, "wrong": 1}
COMPLETENESS = {"words": 1, "half": 1, "segment": 1, "facts": 1}
"""The features of the three heads, and the signs that their weights may have: 1 speaks for an error (relevance,
factuality), or for a better answer (completeness)."""
SAID = 0.4
"""A segment says a sentence wholly if the sentence has this share of the segment's words."""
HALF = 0.5
_WHEN = ("when", "year", "date", "how many", "how much", "how long", "how old")
_FAR = 6
_TINY = 1e-9


@lru_cache(maxsize=1 << 16)
def stems(text: str) -> tuple[str, ...]:
    """The content words of a text without their commonest endings."""
    return tuple(map(_stem, content_words(text)))


def _stem(word: str) -> str:
    for ending in ("'s", "ing", "ed", "es", "s"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word


@lru_cache(maxsize=1 << 16)
def _facts(text: str) -> tuple[tuple[str, str], ...]:
    return tuple((fact.kind, plain(fact.text)) for fact in facts_of(text))


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


class Source:
    """A question with N sentences of passages.

    Args:
        question: the question.
        passages: of each its title and its sentences.
        encode: the frozen encoder.

    Attributes:
        sentences: the N sentences of all passages, without a title that one begins with.
    """

    def __init__(self, question: str, passages: Sequence[tuple[str, Sequence[str]]], encode: Encode) -> None:
        bare = [(title, [text.rsplit("\n", 1)[-1].strip() for text in sentences]) for title, sentences in passages]
        places = [(title, i, text) for title, sentences in bare for i, text in enumerate(filter(None, sentences))]
        self.question = question
        self.titles, self._places = [title for title, _, _ in places], [place for _, place, _ in places]
        self.sentences = [text for _, _, text in places]
        self.asked = frozenset(stems(question))
        self._words = [frozenset(stems(text)) for text in self.sentences]
        self._order = [self._pairs(text) for text in self.sentences]
        counts = Counter(word for words in self._words for word in words)
        self._rare = {word: np.log1p(len(self.sentences) / counts[word]) for word in sorted(counts)}
        self._unknown = float(np.log1p(len(self.sentences) or 1))
        self._column = {word: i for i, word in enumerate(self._rare)}
        self._told = self._matrix([words - self.asked for words in self._words])
        self._weight = np.array(list(self._rare.values()) or [0.0])
        self._size = self._told @ self._weight
        encoded = encode([question, *self.sentences])
        self._asked_vector, self._vectors = encoded[0], encoded[1:]
        self._plain = [plain(text) for text in self.sentences]
        self._all_plain = " ".join([*self._plain, *map(plain, dict.fromkeys([*self.titles, question]))])
        self._anywhere = frozenset().union(*self._words, *(stems(title) for title in self.titles)) - self.asked

    @property
    def nearest(self) -> int:
        """The sentence whose vector lies nearest to the question's; there is at least one."""
        return int((self._vectors @ self._asked_vector).argmax())

    def _matrix(self, texts: Sequence[frozenset[str]]) -> Array:
        rows = np.zeros((len(texts), max(1, len(self._column))))
        for i, words in enumerate(texts):
            rows[i, [self._column[word] for word in words if word in self._column]] = 1.0
        return rows

    def _pairs(self, text: str) -> set[tuple[str, str]]:
        """Neighbouring words, those left out that are both the question's."""
        words = stems(text)
        return {pair for pair in zip(words, words[1:], strict=False) if not self.asked.issuperset(pair)}

    def _worth(self, words: frozenset[str]) -> float:
        return math.fsum(self._rare.get(word, self._unknown) for word in words)  # in whatever order sets have

    def _has(self, words: frozenset[str], of: frozenset[str]) -> float:
        return _share(self._worth(words & of), self._worth(of))

    @cached_property
    def need_rows(self) -> Array:
        """What is read to tell which sentences the question needs, [N, NEED + 2 D]."""
        asked, n = self.asked, len(self.sentences)
        if not n:
            return np.zeros((0, NEED + 2 * len(self._asked_vector)))
        when = any(words in self.question.lower() for words in _WHEN)
        who = "who" in self.question.lower()
        has = np.array([self._has(words, asked) for words in self._words])
        near, centre = self._vectors @ self._asked_vector, self._vectors.mean(0)
        centre /= np.linalg.norm(centre) + _TINY
        shared = (self._told * (self._told.sum(0) > 1)) @ self._weight / np.maximum(self._size, _TINY)
        rows = []
        for i, words in enumerate(self._words):
            around = slice(max(0, i - 1), i + 2)
            kinds = {kind for kind, _ in _facts(self.sentences[i])}
            dated, named = bool(kinds & {"number", "date"}), "name" in kinds
            rows.append(
                (
                    has[i],
                    self._has(asked, words),
                    self._has(frozenset().union(*self._words[around]), asked),
                    self._has(words | frozenset(stems(self.titles[i])), asked),
                    min(self._places[i], _FAR) / _FAR,
                    self._places[i] == 0,
                    dated,
                    named,
                    when and dated,
                    who and named,
                    near[around].mean(),
                )
            )
        ranks = [(-values).argsort().argsort() / max(1, n - 1) for values in (has, near)]
        more = [shared, *ranks, near, near - near.mean(), self._vectors @ centre]
        vectors = [self._vectors * self._asked_vector, np.abs(self._vectors - self._asked_vector)]
        return np.hstack([np.array(rows, float), np.stack(more, 1), *vectors])

    def _links(self, segments: Sequence[str]) -> tuple[Array, Array, Array]:
        """Three arrays [M, N] in [0, 1] for M segments.

        Share of the segment's words that the sentence has; share of the sentence's words that the segment has; share
        of the segment's pairs of neighbouring words that the sentence has.
        """
        own = [frozenset(stems(text)) - self.asked for text in segments]
        shared = (self._matrix(own) * self._weight) @ self._told.T
        worth = np.array([max(self._worth(words), _TINY) for words in own]).reshape(-1, 1)
        orders = [self._pairs(text) for text in segments]
        order = [[_share(len(pairs & of), len(pairs)) for of in self._order] for pairs in orders]
        size = np.maximum(self._size, _TINY)
        return shared / worth, shared / size, np.array(order, float).reshape(len(segments), len(self.sentences))

    def shares(self, answer: frozenset[str], pieces: Sequence[frozenset[str]]) -> Array:
        """The mean of how much of each sentence an answer has and how much of its best piece the sentence has, [N]."""
        best = [max((self._has(words, piece) for piece in pieces), default=0.0) for words in self._words]
        return np.asarray((self._covered(answer) + np.array(best)) / 2)

    def _covered(self, words: frozenset[str]) -> Array:
        """The share of each sentence's words that are among some, [N]."""
        return np.asarray(self._told @ (self._weight * self._matrix([words])[0]) / np.maximum(self._size, _TINY))

    def relevance_rows(self, need: Array, segments: Sequence[str]) -> Array:
        """What is read of each segment's relevance, [M, RELEVANCE]: needed sentences that no segment before it said.

        Args:
            need: of each sentence, [N].
            segments: of the answer, in order.
        """
        if not len(need):
            return np.zeros((len(segments), len(RELEVANCE)))
        words, back, order = self._links(segments)
        copied, says = (words + order) / 2, np.clip(words / SAID, 0.0, 1.0) * (back > 0)
        rank, before, rows, earlier = need / max(float(need.max()), _TINY), np.zeros(len(need)), [], frozenset[str]()
        for text, copy, say in zip(segments, copied, says, strict=True):
            own = frozenset(stems(text)) - self.asked
            rows.append(
                (
                    copy.max(),
                    self._has(self._anywhere, own),
                    say.max(),
                    (say * need).max(),
                    (say * rank).max(),
                    (np.maximum(say - before, 0.0) * rank).max(),
                    self._has(earlier, own),
                    (copy * need).sum() / (copy.sum() + 0.1),
                )
            )
            before, earlier = np.maximum(before, say), earlier | own
        return np.array(rows, float).reshape(-1, len(RELEVANCE))

    def completeness_row(self, need: Array, segments: Sequence[str]) -> Array:
        """Σ need · cov / Σ need with cov by four measures, [COMPLETENESS], each in [0, 1].

        Share of a sentence's words that the answer has; the same, at most half; the most that one segment has; share
        of its names, numbers and dates.
        """
        if not segments or not len(need):
            return np.zeros(len(COMPLETENESS))
        words = self._covered(frozenset[str]().union(*map(stems, segments)) - self.asked)
        answer, asked = plain(" ".join(segments)), plain(self.question)
        facts = np.array(words)
        for i, text in enumerate(self.sentences):
            if new := [fact for _, fact in _facts(text) if not stands_in(fact, asked)]:
                facts[i] = sum(stands_in(fact, answer) for fact in new) / len(new)
        covered = np.stack([words, np.clip(words / HALF, 0.0, 1.0), self._links(segments)[1].max(0), facts])
        return np.array(covered @ need / max(float(need.sum()), _TINY))

    def factuality_rows(self, sentences: Sequence[str]) -> Array:
        """What is read of each sentence's truth, [M, FACTUALITY]: its two best sentences of evidence, and its facts."""
        if not self.sentences:
            return np.tile(np.array([0.0, 0.0, 1.0, 1.0, 1.0, 1.0]), (len(sentences), 1))
        (shared, _, orders), rows = self._links(sentences), []
        for text, words, order in zip(sentences, shared, orders, strict=True):
            own, facts, best = self._pairs(text), _facts(text), (-(words + order)).argsort()[:2]
            pairs = set[Any]().union(*(self._order[j] for j in best))
            behind = " ".join([*(self._plain[j] for j in best), plain(self.question)])
            missing = Counter(kind == "name" for kind, fact in facts if not stands_in(fact, self._all_plain))
            elsewhere = sum(not stands_in(fact, behind) for _, fact in facts)
            rows.append(
                (
                    _share(len(own & pairs), len(own)),
                    words[best[0]],
                    min(missing[False], 2) / 2,
                    min(missing[True], 2) / 2,
                    _share(elsewhere, len(facts)),
                    bool(missing),
                )
            )
        return np.array(rows, float).reshape(-1, len(FACTUALITY))
