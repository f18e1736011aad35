"""What word overlap alone finds: BM25 over the passages, or over the spans, of one dialogue.

Knows words. It is the yardstick that a trained model must beat, and the check that a world needs more than it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

from finegrained_rlhf.dialki.records import DialogueExample
from finegrained_rlhf.dialogue.records import Knowledge

_WORD = re.compile(r"\w+")


def words(text: str) -> list[str]:
    """The words of a text, lower case, without punctuation."""
    return _WORD.findall(text.lower())


def bm25(query: Sequence[str], documents: Sequence[Sequence[str]], k1: float = 0.9, b: float = 0.4) -> list[float]:
    """BM25 score of each document: Σ_w idf(w) · tf (k1 + 1) / (tf + k1 (1 − b + b · length / mean length)).

    idf(w) = ln(1 + (N − df + ½) / (df + ½)) over the given documents; a word counts as often as the query has it.
    Source: Robertson and Zaragoza 2009, with the idf of Lucene.

    Args:
        query: words.
        documents: N documents in words, at least one.
        k1: saturation of the term frequency.
        b: strength of the length normalisation.
    """
    counts = [Counter(document) for document in documents]
    mean = sum(map(len, documents)) / len(documents) or 1.0
    scores = [0.0] * len(documents)
    for word, times in Counter(query).items():
        holding = sum(word in count for count in counts)
        idf = math.log(1 + (len(documents) - holding + 0.5) / (holding + 0.5))
        for i, count in enumerate(counts):
            norm = k1 * (1 - b + b * len(documents[i]) / mean)
            scores[i] += times * idf * count[word] * (k1 + 1) / (count[word] + norm)
    return scores


def query_words(example: DialogueExample, turns: int | None = 1) -> list[str]:
    """The words of the last `turns` turns; all of them where `turns` is None."""
    return [word for turn in example.turns[-turns if turns else None :] for word in words(turn.text)]


def best_passage(example: DialogueExample, turns: int | None = 1) -> int:
    """The passage (title and spans) with the highest BM25 score for the last turns; of equals the first."""
    documents = [words(" ".join((passage.title, *passage.spans))) for passage in example.passages]
    scores = bm25(query_words(example, turns), documents)
    return scores.index(max(scores))


def best_span(example: DialogueExample, turns: int | None = 1) -> Knowledge:
    """The single span with the highest BM25 score among the spans of all passages; of equals the first."""
    places = [(p, j) for p, passage in enumerate(example.passages) for j in range(len(passage.spans))]
    documents = [words(example.passages[p].spans[j]) for p, j in places]
    scores = bm25(query_words(example, turns), documents)
    passage, span = places[scores.index(max(scores))]
    return Knowledge(passage, span, span)
