"""Which sentences of passages answer a question, and how probable it is that any does.

A sentence is described by numbers that need no training: how near it is to the question, with and without its titles
and without the words that the question shares with those; how much of the question its passage and titles cover, and
whether a name of it is absent there; whether it holds a number, date or name where one is asked for. A logistic model
of them gives the probability that the sentence answers; its weights are measured on a development set, and so is the
threshold below which nothing is answered.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from finegrained_rlhf.inscit.asking.expected import expected, named_in
from finegrained_rlhf.inscit.documents.passages import DocumentPassage
from finegrained_rlhf.retrieval.bm25.postings import WordConfig
from finegrained_rlhf.retrieval.dense.config import TextEncoder
from finegrained_rlhf.text.facts import content_words
from finegrained_rlhf.text.segmentation import Span

FEATURES = ("titled", "stripped", "apart", "covered", "unnamed", "expected", "shared", "rank")
"""What a sentence is described by, in order (`EvidenceScorer.describe`)."""
_SENTENCES = 60  # candidates of a question at most


@dataclass(frozen=True)
class Candidate:
    """A sentence that may answer.

    Attributes:
        passage: it is in.
        span: its place in the document's text.
        probability: that it answers the question.
        features: what it was judged by, in the order of `FEATURES`.
    """

    passage: DocumentPassage
    span: Span
    probability: float
    features: tuple[float, ...] = field(repr=False, default=())

    @property
    def log_odds(self) -> float:
        """Of its probability."""
        p = min(max(self.probability, 1e-9), 1 - 1e-9)
        return math.log(p / (1 - p))

    @property
    def text(self) -> str:
        """The sentence as it stands in the document."""
        return self.passage.sentence(self.span)


@dataclass(frozen=True)
class EvidenceWeights:
    """A logistic model of the features of a sentence.

    Attributes:
        bias: of the model.
        weights: by feature; those that are absent count nothing.
        threshold: the probability of the best sentence from which on a question is answered.
        close: a second file whose best sentence is at most so much less probable (log odds) makes a question ambiguous.
    """

    bias: float
    weights: Mapping[str, float]
    threshold: float
    close: float = 0.15

    def probabilities(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of rows [N, features], fp64 [N]."""
        vector = np.array([self.weights.get(name, 0.0) for name in FEATURES])
        return 1 / (1 + np.exp(-(features @ vector + self.bias)))


class EvidenceScorer:
    """Describes and judges sentences.

    Args:
        passages: of the whole folder; how rare a word is is counted in them.
        encoder: of sentences; None judges by words alone.
        weights: of the features.
    """

    def __init__(
        self, passages: Iterable[DocumentPassage], encoder: TextEncoder | None, weights: EvidenceWeights
    ) -> None:
        self._encoder, self.weights = encoder, weights
        self._terms_of = WordConfig("english", "none").terms
        self._counts: Counter[str] = Counter()
        self._number = 0
        for passage in passages:
            self._counts.update(set(self._terms(f"{passage.file} {' '.join(passage.titles)} {passage.text}")))
            self._number += 1

    def candidates(self, question: str, passages: Sequence[DocumentPassage]) -> list[Candidate]:
        """The sentences of passages, the most probable first.

        Args:
            question: that stands by itself.
            passages: as retrieval ranks them.
        """
        places = [(passage, span) for passage in passages for span in passage.sentences][:_SENTENCES]
        if not places:
            return []
        features = self.describe(question, places)
        found = zip(places, self.weights.probabilities(features).tolist(), features.tolist(), strict=True)
        made = [Candidate(passage, span, p, tuple(row)) for (passage, span), p, row in found]
        return sorted(made, key=lambda one: -one.probability)

    def describe(self, question: str, places: Sequence[tuple[DocumentPassage, Span]]) -> NDArray[np.float64]:
        """The features of sentences, fp64 [N, len(FEATURES)]."""
        asked = self._terms(" ".join(content_words(question)))
        names = set(self._terms(" ".join(named_in(question))))
        rows: dict[str, tuple[float, float, set[str]]] = {}
        ranks: dict[str, int] = {}
        for passage, _ in places:
            ranks.setdefault(passage.id, len(ranks) + 1)
            if passage.id not in rows:
                titles = set(self._terms(f"{passage.file} {' '.join(passage.titles)}"))
                there = titles | set(self._terms(passage.text))
                unnamed = max((self._idf(name) for name in names - there), default=0.0)
                rows[passage.id] = (self._share(asked, there), unnamed, titles | (names & there))
        near = self._nearness(question, places, {id: row[2] for id, row in rows.items()})
        texts = [passage.sentence(span) for passage, span in places]
        words = [(expected(question, text), self._share(asked, set(self._terms(text)))) for text in texts]
        return np.array(
            [
                (*vector, rows[passage.id][0], rows[passage.id][1], *lexical, 1 / ranks[passage.id])
                for (passage, _), vector, lexical in zip(places, near, words, strict=True)
            ]
        )

    def _terms(self, text: str) -> list[str]:
        return self._terms_of(text.replace("_", " "))

    def _idf(self, term: str) -> float:
        """From 0, in every passage, to 1, in none."""
        return math.log((self._number + 1) / (self._counts[term] + 0.5)) / math.log(2 * (self._number + 1))

    def _share(self, asked: Sequence[str], there: set[str]) -> float:
        """The share of the question's words that are there, by rareness."""
        weights = {term: self._idf(term) for term in asked}
        return sum(weight for term, weight in weights.items() if term in there) / (sum(weights.values()) or 1.0)

    def _nearness(
        self, question: str, places: Sequence[tuple[DocumentPassage, Span]], titles: Mapping[str, set[str]]
    ) -> list[tuple[float, float, float]]:
        """Cosines: with the titles; of both without the names that the titles have; how far that is above its mean."""
        if self._encoder is None:
            return [(0.0, 0.0, 0.0)] * len(places)
        names = {term for name in named_in(question) for term in self._terms(name)}
        bare_questions = [self._stripped(question, titles[passage.id], names) for passage, _ in places]
        sentences = [" ".join(passage.sentence(span).split()) for passage, span in places]
        titled = [f"{': '.join(passage.titles)}: {text}" for (passage, _), text in zip(places, sentences, strict=True)]
        pairs = zip(places, sentences, strict=True)
        bare = [self._stripped(text, titles[passage.id], names) for (passage, _), text in pairs]
        questions = self._encoder.encode([question, *bare_questions], "query")
        texts = self._encoder.encode([*titled, *bare], "passage")
        near = (questions[1:] * texts[len(titled) :]).sum(axis=1)
        files = [passage.file for passage, _ in places]
        means = {file: float(np.mean([v for f, v in zip(files, near, strict=True) if f == file])) for file in files}
        whole = texts[: len(titled)] @ questions[0]
        return [(float(a), float(b), float(b) - means[f]) for a, b, f in zip(whole, near, files, strict=True)]

    def _stripped(self, text: str, titles: set[str], names: set[str]) -> str:
        """A text without the names and rare words that the titles have."""
        return " ".join(word for word in text.split() if not self._titled(word, titles, names)) or text

    def _titled(self, word: str, titles: set[str], names: set[str]) -> bool:
        terms = self._terms(word)
        return bool(terms) and all(term in titles and (term in names or self._idf(term) > 0.3) for term in terms)


SHIPPED: dict[bool, EvidenceWeights] = {
    True: EvidenceWeights(
        -3.45,
        {
            "titled": 2.90,
            "stripped": 2.08,
            "apart": 2.92,
            "covered": 0.66,
            "unnamed": -4.38,
            "expected": 2.20,
            "rank": 0.93,
        },
        threshold=0.77,
    ),
    False: EvidenceWeights(
        -1.48, {"covered": 1.34, "unnamed": -4.56, "expected": 2.71, "shared": 1.53, "rank": 1.55}, threshold=0.87
    ),
}
"""Weights with a sentence encoder and without one; how they were measured stands in docs/ask.md."""


def shipped_weights(encoder: bool) -> EvidenceWeights:
    """The shipped weights, with a sentence encoder or by words alone."""
    return SHIPPED[encoder]
