"""How queries are worded beside the human's rewrites: what shows rewrites that please a retriever and say nothing.

A retriever's reward does not see a phrase that is repeated to the limit of tokens.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from finegrained_rlhf.metrics.functions import repeated_bigram_share, words_with_letters
from finegrained_rlhf.metrics.rouge1 import rouge1_scores
from finegrained_rlhf.text.span_f1 import word_tokens


@dataclass(frozen=True)
class Wording:
    """Measures of the queries of one system.

    Attributes:
        rouge1: mean ROUGE-1 F1 with the human's rewrite, over queries whose question has one; None without any.
        length_ratio: their words over those of the human's rewrites; None without any.
        repeated_bigrams: share of the queries in which two words that stand together do so a second time; None without
            queries.
        cut: share of the queries that the limit of tokens cut off; None where that is not known.
    """

    rouge1: float | None
    length_ratio: float | None
    repeated_bigrams: float | None
    cut: float | None


def repeats_a_bigram(text: str) -> bool:
    """Whether two words that stand together do so again, in lower case; punctuation is no word.

    A word three times in a row is a repetition too.
    """
    return repeated_bigram_share(words_with_letters(text)) > 0


def wording_of(
    queries: Mapping[str, str], references: Mapping[str, str], cut: Collection[str] | None = None
) -> Wording:
    """Measure queries that are not blank.

    Args:
        queries: by question id.
        references: the human's rewrites by question id.
        cut: ids of the questions whose rewrite was cut off; None where that is not known.
    """
    paired = [(text, references[name]) for name, text in queries.items() if name in references]
    rouge = rouge1_scores([text for text, _ in paired], [reference for _, reference in paired]) if paired else []
    human = sum(len(word_tokens(reference)) for _, reference in paired)
    return Wording(
        rouge1=statistics.fmean(rouge) if rouge else None,
        length_ratio=sum(len(word_tokens(text)) for text, _ in paired) / human if human else None,
        repeated_bigrams=statistics.fmean(map(repeats_a_bigram, queries.values())) if queries else None,
        cut=None if cut is None or not queries else statistics.fmean(name in cut for name in queries),
    )
