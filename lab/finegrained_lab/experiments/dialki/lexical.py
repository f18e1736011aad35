"""What word overlap alone finds: BM25 over the passages, or over the spans, of one dialogue.

The yardstick that a trained model must beat, and the check that a world needs more than it. Words and weights are those
of `retrieval`'s BM25 with its defaults (Porter's stems, Lucene's 33 stop words, k1 0.82, b 0.68), or with `snowball()`;
the statistics are those of the texts given, not of a corpus.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from finegrained_rlhf.dialki.records import DialogueExample
from finegrained_rlhf.dialogue.records import Knowledge
from finegrained_rlhf.retrieval.bm25.postings import GrowingVocabulary, TermWeights, Weighting, count_terms, pool_scores
from finegrained_rlhf.retrieval.bm25.retriever import Bm25Config


def snowball() -> Bm25Config:
    """Snowball's English stemmer (Porter's second) and NLTK's 179 English stop words, as bm25s brings them along.

    Question words and pronouns are among them, which say little of what is asked for.
    """
    from bm25s.stopwords import STOPWORDS_EN_PLUS

    return Bm25Config(stemmer="english", stop_words=STOPWORDS_EN_PLUS)


def bm25(query: str, documents: Sequence[str], config: Bm25Config | None = None) -> list[float]:
    """BM25 score of each document: Σ_w idf(w) · tf / (tf + k1 (1 − b + b · length / mean length)).

    idf(w) = ln(1 + (N − df + ½) / (df + ½)) over the given documents; a term counts as often as the query has it.

    Args:
        query: a text.
        documents: N texts, at least one.
        config: what becomes of a word, k1 and b; retrieval's defaults when None.
    """
    config = config or Bm25Config()
    terms = GrowingVocabulary(config.words)
    numbers = terms.numbers(documents)
    counts = count_terms(numbers)
    frequencies = np.bincount(counts.terms, minlength=len(terms)).astype(np.int64)
    weighting = Weighting(len(documents), float(counts.lengths.mean()), frequencies, config.k1, config.b)
    lengths = np.repeat(counts.lengths, np.diff(counts.starts))
    weights = weighting.weights(counts.terms, counts.counts, lengths)
    cuts = counts.starts[1:-1]
    passages = list(map(TermWeights, np.split(counts.terms, cuts), np.split(weights, cuts)))
    scores: list[float] = pool_scores(terms.numbers([query]), passages)[0].tolist()
    return scores


def last_turns_query(example: DialogueExample, turns: int | None = 1) -> str:
    """The last `turns` turns as one text; all of them where `turns` is None."""
    return " ".join(turn.text for turn in example.turns[-turns if turns else None :])


def lexical_passage(example: DialogueExample, turns: int | None = 1, config: Bm25Config | None = None) -> int:
    """The passage (title and spans) with the highest BM25 score for the last turns; of equals the first."""
    scores = bm25(last_turns_query(example, turns), [passage.contents for passage in example.passages], config)
    return scores.index(max(scores))


def lexical_span(example: DialogueExample, turns: int | None = 1, config: Bm25Config | None = None) -> Knowledge:
    """The single span with the highest BM25 score among the spans of all passages; of equals the first."""
    places = [(p, j) for p, passage in enumerate(example.passages) for j in range(len(passage.spans))]
    documents = [example.passages[p].spans[j] for p, j in places]
    scores = bm25(last_turns_query(example, turns), documents, config)
    passage, span = places[scores.index(max(scores))]
    return Knowledge(passage, span, span)
