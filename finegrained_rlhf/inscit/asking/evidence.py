"""Which sentences of passages answer a question, and how probable it is that any does.

A sentence is described by numbers that need no training: how near it is to the question, with and without its titles
and without the words that the question shares with those, beside the other sentences of its document and of others; how
much of the question its passage and titles cover, and whether a name of it is absent there; whether it holds a number,
date or name where one is asked for; whether other documents say it too. A logistic model of them gives the probability
that the sentence answers. Where there is a larger encoder, it looks at the best sentences again. Weights are measured
on generated folders, and so is the threshold below which nothing is answered.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from finegrained_rlhf.inscit.asking.commands import is_command
from finegrained_rlhf.inscit.asking.expected import expected, named_in
from finegrained_rlhf.inscit.documents.passages import DocumentPassage
from finegrained_rlhf.retrieval.bm25.postings import WordConfig
from finegrained_rlhf.retrieval.dense.config import TextKind
from finegrained_rlhf.text.facts import content_words
from finegrained_rlhf.text.segmentation import Span

FEATURES = (
    "titled", "stripped", "apart", "margin", "elsewhere", "covered", "unnamed", "expected", "shared", "rank", "common",
)  # fmt: skip
"""What a sentence is described by, in order (`EvidenceScorer.describe`)."""
RERANKED = ("titled_again", "stripped_again")
"""What a reranker adds: `titled` and `stripped` by its own vectors."""
Judges = Literal["reranker", "encoder", "words"]
"""What judges sentences: two encoders, one, or none."""
_SENTENCES = 60  # candidates of a question at most; what short passages leave of their share goes to the others


class SentenceEncoder(Protocol):
    """Gives vectors of sentences and questions; a `TextEncoder` does."""

    def encode(self, texts: Sequence[str], kind: TextKind) -> NDArray[np.float32]:
        """Unit vectors of texts, fp32 [N, dimension]."""
        ...


Place = tuple[DocumentPassage, Span]
"""A sentence of a passage."""


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
        """Of rows [N, features], those of `RERANKED` behind the others or absent, fp64 [N]."""
        names = (*FEATURES, *RERANKED)[: features.shape[1]]
        vector = np.array([self.weights.get(name, 0.0) for name in names])
        return 1 / (1 + np.exp(-(features @ vector + self.bias)))


@dataclass(frozen=True)
class Reranker:
    """A larger encoder that looks at the best sentences again.

    Attributes:
        encoder: of sentences.
        first: weights by which they are the best.
        looked: how many.
    """

    encoder: SentenceEncoder
    first: EvidenceWeights
    looked: int = 10


class EvidenceScorer:
    """Describes and judges sentences.

    Args:
        passages: of the whole folder; how rare a word is, and how many files have a sentence, is counted in them.
        encoder: of sentences; None judges by words alone.
        weights: of the features.
        reranker: looks at the best sentences again; the others are no candidates then.
    """

    def __init__(
        self,
        passages: Iterable[DocumentPassage],
        encoder: SentenceEncoder | None,
        weights: EvidenceWeights,
        reranker: Reranker | None = None,
    ) -> None:
        self._encoder, self.weights, self._reranker = encoder, weights, reranker
        self._terms_of = WordConfig("english", "none").terms
        self._counts: Counter[str] = Counter()
        self._said: Counter[int] = Counter()  # files that have a sentence, by its hash
        self._number, files, said = 0, set[str](), set[tuple[str, int]]()
        for passage in passages:
            self._counts.update(set(self._terms(f"{passage.file} {' '.join(passage.titles)} {passage.text}")))
            self._number += 1
            files.add(passage.file)
            said.update((passage.file, _hash(passage, span)) for span in passage.sentences)
        self._files = len(files)
        self._said.update(sentence for _, sentence in said)

    def candidates(self, question: str, passages: Sequence[DocumentPassage]) -> list[Candidate]:
        """The sentences of passages, the most probable first; one that is told to who answers (`is_command`) is none.

        Args:
            question: that stands by itself.
            passages: as retrieval ranks them.
        """
        all_places = ((passage, span) for passage in passages for span in passage.sentences)
        places = [place for place in all_places if not is_command(place[0].sentence(place[1]))]
        if len(places) > _SENTENCES:
            places = self._shared_out(question, places)
        if not places:
            return []
        features = self.describe(question, places)
        if self._reranker is not None:
            best = np.argsort(-self._reranker.first.probabilities(features), kind="stable")[: self._reranker.looked]
            places = [places[i] for i in best]
            titled, bare = self._cosines(self._reranker.encoder, question, places)
            features = np.column_stack([features[best], titled, bare.diagonal()])
        found = zip(places, self.weights.probabilities(features).tolist(), features.tolist(), strict=True)
        made = [Candidate(passage, span, p, tuple(row)) for (passage, span), p, row in found]
        return sorted(made, key=lambda one: -one.probability)

    def _shared_out(self, question: str, places: Sequence[Place]) -> list[Place]:
        """As many as are judged, in order: of each passage as many, by the words that they share with the question."""
        asked = self._terms(" ".join(content_words(question)))
        rows = dict[str, list[tuple[float, int]]]()
        for row, (passage, span) in enumerate(places):
            shared = self._share(asked, set(self._terms(passage.sentence(span))))
            rows.setdefault(passage.id, []).append((-shared, row))
        turns = [(turn, n, row) for n, of in enumerate(rows.values()) for turn, (_, row) in enumerate(sorted(of))]
        return [places[row] for row in sorted(row for _, _, row in sorted(turns)[:_SENTENCES])]

    def describe(self, question: str, places: Sequence[Place]) -> NDArray[np.float64]:
        """The features of sentences, fp64 [N, len(FEATURES)]."""
        names, titles = self._named(question, places)
        asked = self._terms(" ".join(content_words(question)))
        of_passages: dict[str, tuple[float, float, float]] = {}
        for passage, _ in places:
            if passage.id not in of_passages:
                there = titles[passage.id] | set(self._terms(passage.text))
                unnamed = max((self._idf(name) for name in names - there), default=0.0)
                of_passages[passage.id] = (self._share(asked, there), unnamed, 1 / (len(of_passages) + 1))
        near = self._nearness(question, places)
        rows = []
        for (passage, span), vector in zip(places, near, strict=True):
            covered, unnamed, rank = of_passages[passage.id]
            text = passage.sentence(span)
            lexical = (expected(question, text), self._share(asked, set(self._terms(text))))
            rows.append((*vector, covered, unnamed, *lexical, rank, self._common(passage, span)))
        return np.array(rows)

    def _named(self, question: str, places: Sequence[Place]) -> tuple[set[str], dict[str, set[str]]]:
        """Terms of the question's names; by passage those of its titles, and of those names that its text has."""
        names = {term for name in named_in(question) for term in self._terms(name)}
        titles = {}
        for passage, _ in places:
            if passage.id not in titles:
                of_titles = set(self._terms(f"{passage.file} {' '.join(passage.titles)}"))
                titles[passage.id] = of_titles | (names & set(self._terms(passage.text)))
        return names, titles

    def _common(self, passage: DocumentPassage, span: Span) -> float:
        """From 0, no other file says it, to 1, a fifth of them and more do."""
        others = self._said[_hash(passage, span)] - 1
        return min(1.0, 5 * max(0, others) / max(1, self._files - 1))

    def _terms(self, text: str) -> list[str]:
        return self._terms_of(text.replace("_", " "))

    def _idf(self, term: str) -> float:
        """From 0, in every passage, to 1, in none."""
        return math.log((self._number + 1) / (self._counts[term] + 0.5)) / math.log(2 * (self._number + 1))

    def _share(self, asked: Sequence[str], there: set[str]) -> float:
        """The share of the question's words that are there, by rareness."""
        weights = {term: self._idf(term) for term in asked}
        return sum(weight for term, weight in weights.items() if term in there) / (sum(weights.values()) or 1.0)

    def _nearness(self, question: str, places: Sequence[Place]) -> NDArray[np.float64]:
        """`titled`, `stripped`, `apart`, `margin` and `elsewhere`, fp64 [N, 5].

        Cosines with the titles, and of both without the names that the titles have; how far that is above its mean in
        the document, and above the document's best other sentence; how much nearer one of another document is.
        """
        if self._encoder is None:
            return np.zeros((len(places), 5))
        titled, bare = self._cosines(self._encoder, question, places)
        files = np.array([passage.file for passage, _ in places])
        near, rows = bare.diagonal(), []
        for i, file in enumerate(files):
            own, apart = files == file, near[i] - near[files == file].mean()
            own[i] = False
            margin = near[i] - near[own].max() if own.any() else 0.0
            elsewhere = max(0.0, bare[i, files != file].max(initial=near[i]) - near[i])
            rows.append((titled[i], near[i], apart, margin, elsewhere))
        return np.array(rows, dtype=np.float64)

    def _cosines(
        self, encoder: SentenceEncoder, question: str, places: Sequence[Place]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Of the question with sentences and their titles [N]; without what each one's titles name [N, N sentences]."""
        names, titles = self._named(question, places)
        sentences = [" ".join(passage.sentence(span).split()) for passage, span in places]
        titled = [f"{': '.join(passage.titles)}: {text}" for (passage, _), text in zip(places, sentences, strict=True)]
        bare_questions = [self._stripped(question, titles[passage.id], names) for passage, _ in places]
        pairs = zip(places, sentences, strict=True)
        bare = [self._stripped(text, titles[passage.id], names) for (passage, _), text in pairs]
        asked = [question, *dict.fromkeys(bare_questions)]
        questions = encoder.encode(asked, "query")
        texts = encoder.encode([*titled, *bare], "passage")
        own = [asked.index(text, 1) for text in bare_questions]
        return texts[: len(titled)] @ questions[0], questions[own] @ texts[len(titled) :].T

    def _stripped(self, text: str, titles: set[str], names: set[str]) -> str:
        """A text without the names and rare words that the titles have."""
        return " ".join(word for word in text.split() if not self._titled(word, titles, names)) or text

    def _titled(self, word: str, titles: set[str], names: set[str]) -> bool:
        terms = self._terms(word)
        return bool(terms) and all(term in titles and (term in names or self._idf(term) > 0.3) for term in terms)


def _hash(passage: DocumentPassage, span: Span) -> int:
    return hash(" ".join(passage.sentence(span).split()))


SHIPPED: dict[Judges, EvidenceWeights] = {
    "reranker": EvidenceWeights(
        -7.032,
        {
            "margin": 7.725,
            "elsewhere": -4.994,
            "covered": 1.07,
            "unnamed": -13.004,
            "expected": 1.421,
            "rank": 0.32,
            "common": -2.361,
            "titled_again": 7.433,
            "stripped_again": 3.985,
        },
        threshold=0.214,
    ),
    "encoder": EvidenceWeights(
        -5.568,
        {
            "titled": 6.512,
            "margin": 9.409,
            "elsewhere": -6.176,
            "covered": 1.967,
            "unnamed": -12.625,
            "expected": 1.527,
            "rank": 0.459,
            "common": -2.864,
        },
        threshold=0.435,
    ),
    "words": EvidenceWeights(
        -2.68,
        {"covered": 0.681, "unnamed": -7.23, "expected": 2.412, "rank": 0.795, "common": -3.199},
        threshold=0.255,
    ),
}
"""Weights by what judges sentences beside words; `pipeline=inscit/ask` fitted them (docs/ask.md)."""
