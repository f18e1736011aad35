"""What reward models read, in words: the layouts, and which sentences of the passages where not all of them fit.

Both follow from the input alone, in training and scoring alike.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from finegrained_rlhf.text.templates import (
    PassageText,
    completeness_input,
    context_text,
    factuality_input,
    relevance_input,
    squeeze,
    task_text,
)

_SEP = "</s>"


@dataclass(frozen=True)
class InputParts:
    """One input in words.

    Attributes:
        before: everything before the passages.
        context: the passages, the only part that may be cut; may be empty.
        after: what follows them up to the first separator.
        segments: the segments to judge, each behind a separator; none for a model of whole answers.
    """

    before: str
    context: str
    after: str
    segments: tuple[str, ...] = ()


def _around(text: str, context: str) -> tuple[str, str, str]:
    """`text` split into what lies before, in and after `context`."""
    before, middle, after = text.partition(context) if context else (text, "", "")
    return before.strip(), middle, after.strip()


def relevance_parts(question: str, segments: Sequence[str]) -> InputParts:
    """The R1 input: question and segments, no passages."""
    pieces = relevance_input(question, segments, _SEP)
    return InputParts(pieces[0], "", "", tuple(pieces[2::2]))


def factuality_parts(question: str, passages: Sequence[PassageText], segments: Sequence[str]) -> InputParts:
    """The R2 input: question, passages and segments."""
    context = context_text(passages)
    pieces = factuality_input(question, context, segments, _SEP)
    return InputParts(*_around(pieces[0], squeeze(context)), tuple(pieces[2::2]))


def answer_parts(question: str, passages: Sequence[PassageText], answer: str) -> InputParts:
    """The R3 and preference input: task text and the whole answer."""
    text = completeness_input(task_text(question, passages), answer)
    return InputParts(*_around(text, squeeze(context_text(passages))))


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
