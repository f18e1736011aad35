"""Which sentences of the passages a reward model reads where not all of them fit.

What is chosen follows from the input alone, in training and scoring alike.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from reward_models.kinds.parts import InputParts

PassageChoice = Literal["first", "question", "answer"]
"""What an input that is too long keeps of its passages: their beginning; the sentences that share most words with the
question; or those that share most with the question and the answer."""

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\s(?=\| )")
_WORD = re.compile(r"\w+")
_COMMON = frozenset(
    "a an and are as at be by did do does for from had has have he her his how in is it its of on or she that the "
    "their they this to was were what when where which who why will with question context answer wikipage text".split()
)


def content_words(text: str) -> set[str]:
    """Lower-cased words of a text without the most common ones and the words of the template."""
    return {word for word in _WORD.findall(text.lower()) if word not in _COMMON}


def sentences_of(context: str) -> list[str]:
    """The passages cut at sentence ends and between passages, in order; the joints are the white space between them."""
    return [piece for piece in _SENTENCE_END.split(context) if piece]


def selection_words(item: InputParts, choice: PassageChoice) -> set[str]:
    """The words that sentences are chosen by."""
    question_words = content_words(item.before)
    return (
        question_words
        if choice == "question"
        else question_words | content_words(" ".join([item.after, *item.segments]))
    )


def choose(sentences: Sequence[str], sizes: Sequence[int], query: set[str], room: int) -> list[int]:
    """Indices of the sentences to keep, in their order.

    Sentences are taken by Σ idf(w) / √(number of words) over the words w that they share with the query, idf over the
    sentences themselves, as long as they fit; equal ones from the front.

    Args:
        sentences: of the passages.
        sizes: of each, in tokens.
        query: words to share.
        room: tokens that fit.
    """
    words = [content_words(sentence) for sentence in sentences]
    found_in = Counter(word for of in words for word in of)
    weight = {word: math.log(1 + len(sentences) / count) for word, count in found_in.items()}
    scores = [sum(weight[w] for w in of & query) / math.sqrt(len(of) or 1) for of in words]
    kept = []
    for i in sorted(range(len(sentences)), key=lambda i: (-scores[i], i)):
        if sizes[i] <= room:
            kept.append(i)
            room -= sizes[i]
    return sorted(kept)
