"""What the bottleneck reads: a question with its passages, and how far each segment of an answer says their sentences.

All that is read of an answer is what it shares with the passages' sentences: words (weighted by how few of the
sentences have them), word order, direction of sentence vectors, and names, numbers and dates. Words of the question
count as said already, so that restating it shares nothing. Length and place of a segment are never read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finegrained_rlhf.text.facts import content_words, facts_of, plain, stands_in

Array = NDArray[np.float64]
Encode = Callable[[Sequence[str]], Array]
"""Unit vectors of texts, [n, D]."""

NEED = 17
RELEVANCE = ("said", "needed", "need", "before", "fresh", "repeated", "rank", "mean_need")
FACTUALITY = ("words", "order", "best", "anywhere", "numbers", "names", "elsewhere", "wrong", "near")
COMPLETENESS = ("words", "order", "segment", "near")
"""The columns of the three heads' features."""
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


def _pairs(words: Sequence[str]) -> set[tuple[str, str]]:
    return set(zip(words, words[1:], strict=False))


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


class Source:
    """A question with N sentences of passages.

    Args:
        question: the question.
        passages: of each its title and its sentences.
        encode: the frozen encoder.
        vectors: whether vectors of answers are read (`near`); without, an answer is held against sentences by its
            words, their order and its facts, and nothing of it is encoded.

    Attributes:
        sentences: the N sentences of all passages, without a title that one begins with.
    """

    def __init__(
        self, question: str, passages: Sequence[tuple[str, Sequence[str]]], encode: Encode, vectors: bool = True
    ) -> None:
        bare = [(title, [text.rsplit("\n", 1)[-1].strip() for text in sentences]) for title, sentences in passages]
        places = [(title, i, text) for title, sentences in bare for i, text in enumerate(filter(None, sentences))]
        self.question, self._encode, self._reads_vectors = question, encode, vectors
        self.titles, self._places = [title for title, _, _ in places], [place for _, place, _ in places]
        self.sentences = [text for _, _, text in places]
        self.asked = frozenset(stems(question))
        self._words = [frozenset(stems(text)) for text in self.sentences]
        self._order = [_pairs(stems(text)) for text in self.sentences]
        counts = Counter(word for words in self._words for word in words)
        self._rare = {word: np.log1p(len(self.sentences) / count) for word, count in counts.items()}
        self._unknown = float(np.log1p(len(self.sentences) or 1))
        self._column = {word: i for i, word in enumerate(counts)}
        self._told = self._matrix([words - self.asked for words in self._words])
        self._weight = np.array(list(self._rare.values()) or [0.0])
        self._size = self._told @ self._weight
        encoded = encode([question, *self.sentences])
        self._asked_vector, self._vectors = encoded[0], encoded[1:]
        self._near_question = np.maximum(self._vectors @ self._asked_vector, 0.0)
        self._plain = [plain(text) for text in self.sentences]
        self._all_plain = " ".join([*self._plain, *map(plain, {*self.titles, question})])
        self._anywhere = frozenset().union(*self._words, *(stems(title) for title in self.titles)) - self.asked

    def _matrix(self, texts: Sequence[frozenset[str]]) -> Array:
        rows = np.zeros((len(texts), max(1, len(self._column))))
        for i, words in enumerate(texts):
            rows[i, [self._column[word] for word in words if word in self._column]] = 1.0
        return rows

    def _worth(self, words: frozenset[str]) -> float:
        return float(sum(self._rare.get(word, self._unknown) for word in words))

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

    def links(self, segments: Sequence[str]) -> Mapping[str, Array]:
        """How far each of M segments says each sentence, every array [M, N] in [0, 1].

        `words`: share of the segment's words that the sentence has; `back`: share of the sentence's words that the
        segment has; `order`: share of its pairs of neighbouring words; `near`: how much nearer to the sentence its
        vector lies than the question's does.
        """
        told = [frozenset(stems(text)) - self.asked for text in segments]
        shared = (self._matrix(told) * self._weight) @ self._told.T
        worth = np.array([[max(self._worth(words), _TINY)] for words in told]).reshape(-1, 1)
        orders = [_pairs(stems(text)) for text in segments]
        order = [[_share(len(own & of), len(own)) for of in self._order] for own in orders]
        near, base = self._nearness(segments), self._near_question
        return {
            "words": shared / worth,
            "back": shared / np.maximum(self._size, _TINY),
            "order": np.array(order, float).reshape(len(segments), len(self.sentences)),
            "near": np.clip((near - base) / (1.05 - base), 0.0, 1.0) * (shared > 0),
        }

    def _nearness(self, texts: Sequence[str]) -> Array:
        if not texts or not self._reads_vectors:
            return np.zeros((len(texts), len(self.sentences)))
        return self._encode(texts) @ self._vectors.T

    def shares(self, answer: frozenset[str], pieces: Sequence[frozenset[str]]) -> Array:
        """The mean of how much of each sentence an answer has and how much of its best piece the sentence has, [N]."""
        said = self._told @ (self._weight * self._matrix([answer])[0]) / np.maximum(self._size, _TINY)
        best = [max((self._has(words, piece) for piece in pieces), default=0.0) for words in self._words]
        return np.asarray((said + np.array(best)) / 2)

    def relevance_rows(self, need: Array, segments: Sequence[str]) -> Array:
        """What is read of each segment's relevance, [M, RELEVANCE]: needed sentences that no segment before it said.

        Args:
            need: of each sentence, [N].
            segments: of the answer, in order.
        """
        links, rows, said = self.links(segments), [], frozenset[str]()
        link = (links["words"] + links["order"] + links["near"]) / (2 + self._reads_vectors)
        before, highest = np.zeros(len(need)), max(float(need.max(initial=0.0)), _TINY)
        for text, now in zip(segments, link, strict=True):
            words = frozenset(stems(text)) - self.asked
            if not len(need):
                rows.append((0.0,) * len(RELEVANCE))
                continue
            best = int(now.argmax())
            fresh = np.maximum(now - before, 0.0)
            own = (now[best], (now * need).max(), need[best], before[best], (fresh * need).max())
            mean = (now * need).sum() / (now.sum() + 0.1)
            rows.append((*own, self._has(said, words), need[best] / highest, mean))
            before, said = np.maximum(before, now), said | words
        return np.array(rows, float).reshape(-1, len(RELEVANCE))

    def completeness_row(self, need: Array, segments: Sequence[str]) -> Array:
        """Σ need · cov / Σ need with cov by four measures, [COMPLETENESS], each in [0, 1]."""
        if not segments or not len(need):
            return np.zeros(len(COMPLETENESS))
        links = self.links(segments)
        told = self._matrix([frozenset[str]().union(*map(stems, segments)) - self.asked])[0]
        words = self._told @ (self._weight * told) / np.maximum(self._size, _TINY)
        covered = np.stack([words, links["order"].max(0), links["back"].max(0), links["near"].max(0)])
        return np.array(covered @ need / max(float(need.sum()), _TINY))

    def factuality_rows(self, sentences: Sequence[str]) -> Array:
        """What is read of each sentence's truth, [M, FACTUALITY]: its two best sentences of evidence, and its facts."""
        links, rows = self.links(sentences), []
        if not self.sentences:
            return np.tile(np.array([0.0] * 4 + [1.0] * 4 + [0.0]), (len(sentences), 1))
        near = self._nearness(sentences).max(1)
        for i, text in enumerate(sentences):
            words, order, facts = frozenset(stems(text)) - self.asked, _pairs(stems(text)), _facts(text)
            first, *second = (-(links["words"][i] + links["order"][i])).argsort()[:2]
            best = [first, *second]
            evidence = frozenset().union(*(self._words[j] for j in best))
            pairs = set[Any]().union(*(self._order[j] for j in best))
            behind = " ".join([*(self._plain[j] for j in best), plain(self.question)])
            missing = Counter(kind == "name" for kind, fact in facts if not stands_in(fact, self._all_plain))
            elsewhere = sum(not stands_in(fact, behind) for _, fact in facts)
            rows.append(
                (
                    self._has(evidence, words),
                    _share(len(order & pairs), len(order)),
                    links["words"][i, first],
                    self._has(self._anywhere, words),
                    min(missing[False], 2) / 2,
                    min(missing[True], 2) / 2,
                    _share(elsewhere, len(facts)),
                    bool(missing),
                    near[i],
                )
            )
        return np.array(rows, float).reshape(-1, len(FACTUALITY))
