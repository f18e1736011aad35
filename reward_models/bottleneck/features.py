"""What the bottleneck reads: a question with its passages, and how far each segment of an answer says their sentences.

Vectors of a frozen encoder tell which sentences the question needs. All that is read of an answer is what it shares
with the sentences: words (weighted by how few of the sentences have them), word order, and names, numbers and dates.
Words of the question count as said already, so that restating it shares nothing. A segment says nothing of a sentence
with which it shares names, numbers and dates alone, so that lists of them earn nothing; nor does a segment that no mark
ends, so that breaking off earns nothing. Length and place of a segment are never read. Each feature has a sign: what a
head may make of it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finegrained_rlhf.metrics.grounding import Statements
from finegrained_rlhf.text.facts import Fact, content_words, facts_of

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
Encode = Callable[[Sequence[str]], Array]
"""Unit vectors of texts, [n, D]."""

NEED = {"words": 18, "place": 3, "shared": 3}
"""How many features tell what is needed: of what a sentence has in common with the question, of where it stands, and of
what other sentences have of it. The products of the two vectors follow them."""
RELEVANCE = {"known": -1, "said": -1, "needed": -1, "fresh": -1, "repeated": 1, "mean": -1, "reworded": -1}
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
_ENDS, _STOPS = re.compile(r"[,;:.!?…。！？]\W*$"), re.compile(r"[.!?…。！？]\W*$")


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
def _facts(text: str) -> tuple[Fact, ...]:
    return tuple(facts_of(text))


@lru_cache(maxsize=1 << 16)
def _states(text: str) -> Statements:
    return Statements([text])


@lru_cache(maxsize=1 << 16)
def _apart(text: str, context: str) -> frozenset[str]:
    """The stems of a text outside its names, numbers and dates; `context` tells which words are names."""
    for fact in facts_of(text, context):
        text = f"{text[: fact.start]}{' ' * (fact.end - fact.start)}{text[fact.end :]}"
    return frozenset(stems(text))


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
        places = [(k, i, text) for k, (_, texts) in enumerate(bare) for i, text in enumerate(filter(None, texts))]
        self.question = question
        self._passage, self._places = [k for k, _, _ in places], [place for _, place, _ in places]
        self.titles, self.sentences = [bare[k][0] for k in self._passage], [text for _, _, text in places]
        self.asked = frozenset(stems(question))
        self._words = [frozenset(stems(text)) for text in self.sentences]
        self._order = [self._pairs(text) for text in self.sentences]
        counts = Counter(word for words in self._words for word in words)
        self._rare = {word: np.log1p(len(self.sentences) / counts[word]) for word in sorted(counts)}
        self._unknown = float(np.log1p(len(self.sentences) or 1))
        self._column = {word: i for i, word in enumerate(self._rare)}
        self._news = self._matrix([words - self.asked for words in self._words])
        self._weight = np.array(list(self._rare.values()) or [0.0])
        self._size = np.maximum(self._news @ self._weight, _TINY)
        encoded = encode([question, *self.sentences, *(title or " " for title in self.titles)])
        self._asked_vector, self._vectors = encoded[0], encoded[1 : len(places) + 1]
        self._title_vectors = encoded[len(places) + 1 :]
        self._context = "\n".join([*dict.fromkeys(self.titles), *self.sentences])
        self._facts = [_facts(text) for text in self.sentences]
        asked = _states(question)
        self._new_facts = [[fact for fact in of if fact not in asked] for of in self._facts]
        self._apart = [_apart(text, self._context) for text in self.sentences]
        self._known = Statements([*self.sentences, *dict.fromkeys(self.titles), question])
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
        """What is read to tell which sentences the question needs, [N, Σ NEED + D]."""
        asked, n = self.asked, len(self.sentences)
        if not n:
            return np.zeros((0, sum(NEED.values()) + len(self._asked_vector)))
        when, who = any(words in self.question.lower() for words in _WHEN), "who" in self.question.lower()
        near = self._vectors @ self._asked_vector
        alike = self._vectors @ self._vectors.T
        own = np.array(self._passage)[:, None] == np.array(self._passage)
        has = np.array([self._has(words, asked) for words in self._words])
        words, place = [], []
        for i, of in enumerate(self._words):
            around, passage = slice(max(0, i - 1), i + 2), np.flatnonzero(own[i])
            kinds, title = {fact.kind for fact in self._facts[i]}, frozenset(stems(self.titles[i]))
            dated, named = bool(kinds & {"number", "date"}), "name" in kinds
            has_around = self._has(frozenset().union(*self._words[around]), asked)
            has_title = [self._has(title, asked), self._has(asked, title), self._has(of | title, asked)]
            passage_has = self._has(frozenset().union(*(self._words[j] for j in passage)), asked)
            row = [has[i], self._has(asked, of), has_around, *has_title, passage_has, dated, named]
            words.append([*row, when and dated, who and named, near[around].mean(), near[passage].max()])
            place.append([min(self._places[i], _FAR) / _FAR, self._places[i] == 0, min(self._passage[i], _FAR) / _FAR])
        ranks = [(-values).argsort().argsort() / max(1, n - 1) for values in (has, near)]
        titled = [self._title_vectors @ self._asked_vector, (self._title_vectors * self._vectors).sum(1)]
        several = (self._news * (self._news.sum(0) > 1)) @ self._weight / self._size
        shared = [several, alike.mean(1), np.where(own, 0.0, alike).max(1)]
        columns = [*np.array(words, float).T, near, *titled, *ranks, *np.array(place, float).T, *shared]
        return np.hstack([np.stack(columns, 1), self._vectors * self._asked_vector])

    def _links(self, segments: Sequence[str]) -> tuple[Array, Array, Array]:
        """Three arrays [M, N] in [0, 1] for M segments.

        Share of the segment's words that the sentence has; share of the sentence's words that the segment has; share
        of the segment's pairs of neighbouring words that the sentence has.
        """
        own = [frozenset(stems(text)) - self.asked for text in segments]
        shared = (self._matrix(own) * self._weight) @ self._news.T
        worth = np.array([max(self._worth(words), _TINY) for words in own]).reshape(-1, 1)
        orders = [self._pairs(text) for text in segments]
        order = [[_share(len(pairs & of), len(pairs)) for of in self._order] for pairs in orders]
        return shared / worth, shared / self._size, np.array(order, float).reshape(len(segments), len(self.sentences))

    def _says(self, segments: Sequence[str]) -> Flags:
        """Whether each of M segments says something of each sentence, [M, N].

        It ends with a mark, and from where its own sentence begins up to its end it has a word of the sentence's that
        is no name, number or date in either.
        """
        rows, words = np.zeros((len(segments), len(self.sentences)), bool), frozenset[str]()
        for i, text in enumerate(segments):
            words |= _apart(text, self._context)
            if _ENDS.search(text):
                rows[i] = [not words.isdisjoint(of) for of in self._apart]
            if _STOPS.search(text):
                words = frozenset()
        return rows

    def shares(self, answer: frozenset[str], pieces: Sequence[frozenset[str]]) -> Array:
        """The mean of how much of each sentence an answer has and how much of its best piece the sentence has, [N]."""
        best = [max((self._has(words, piece) for piece in pieces), default=0.0) for words in self._words]
        return np.asarray((self._covered(answer) + np.array(best)) / 2)

    def covered_by(self, text: str) -> Array:
        """The share of each sentence's words that a text has, [N]."""
        return self._covered(frozenset(stems(text)) - self.asked)

    def _covered(self, words: frozenset[str]) -> Array:
        """The share of each sentence's words that are among some, [N]."""
        return np.asarray(self._news @ (self._weight * self._matrix([words])[0]) / self._size)

    def relevance_rows(self, need: Array, segments: Sequence[str]) -> Array:
        """What is read of each segment's relevance, [M, RELEVANCE]: needed sentences that no segment before it said.

        Args:
            need: of each sentence, [N].
            segments: of the answer, in order.
        """
        if not len(need):
            return np.zeros((len(segments), len(RELEVANCE)))
        words, back, order = self._links(segments)
        clause = self._says(segments)
        copied, says = clause * (words + order) / 2, clause * np.clip(words / SAID, 0.0, 1.0) * (back > 0)
        before, rows, earlier = np.zeros(len(need)), [], frozenset[str]()
        for i, (text, copy, say) in enumerate(zip(segments, copied, says, strict=True)):
            own = frozenset(stems(text)) - self.asked
            rows.append(
                (
                    self._has(self._anywhere, own) * clause[i].any(),
                    say.max(),
                    (say * need).max(),
                    (np.maximum(say - before, 0.0) * need).max(),
                    self._has(earlier, own),
                    (copy * need).sum() / (copy.sum() + 0.1),
                    (say * need * (1 - copy)).max(),
                )
            )
            before, earlier = np.maximum(before, say), earlier | own
        return np.array(rows, float).reshape(-1, len(RELEVANCE))

    def completeness_row(self, need: Array, segments: Sequence[str]) -> Array:
        """Σ need · cov / Σ need with cov by four measures, [COMPLETENESS], each in [0, 1].

        Share of a sentence's words that the answer has; the same, at most half; the most that one segment has; share
        of its names, numbers and dates. Each by the segments that say something of the sentence.
        """
        if not segments or not len(need):
            return np.zeros(len(COMPLETENESS))
        clause, links = self._says(segments), self._links(segments)[1]
        own = self._matrix([frozenset(stems(text)) for text in segments]) > 0
        words = ((clause.T.astype(float) @ own > 0) * self._news) @ self._weight / self._size
        facts = np.array(words)
        for i, news in enumerate(self._new_facts):
            if news:
                saying = [_states(segments[k]) for k in np.flatnonzero(clause[:, i] * links[:, i]).tolist()]
                facts[i] = sum(any(fact in one for one in saying) for fact in news) / len(news)
        covered = np.stack([words, np.clip(words / HALF, 0.0, 1.0), (links * clause).max(0), facts])
        return np.array(covered @ need / max(float(need.sum()), _TINY))

    def factuality_rows(self, sentences: Sequence[str]) -> Array:
        """What is read of each sentence's truth, [M, FACTUALITY]: its two best sentences of evidence, and its facts."""
        if not self.sentences:
            return np.tile(np.array([0.0, 0.0, 1.0, 1.0, 1.0, 1.0]), (len(sentences), 1))
        (shared, _, orders), rows = self._links(sentences), []
        for text, words, order in zip(sentences, shared, orders, strict=True):
            own, facts, best = self._pairs(text), _facts(text), (-(words + order)).argsort()[:2]
            pairs = set[Any]().union(*(self._order[j] for j in best))
            behind = [_states(evidence) for evidence in (*(self.sentences[j] for j in best), self.question)]
            missing = Counter(fact.kind == "name" for fact in facts if fact not in self._known)
            elsewhere = sum(not any(fact in one for one in behind) for fact in facts)
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
