"""Answers that nobody has to learn: a reward that prefers them to a policy's pays for something else than answering."""

from __future__ import annotations

import re
from collections.abc import Sequence

from finegrained_rlhf.text.facts import content_words

LEAD_WORDS = 35
_SENTENCE = re.compile(r"\S.*?(?:[.!?][\"'”’)\]]*(?=\s)|$)", re.MULTILINE)
_ENDS = re.compile(r"[.!?][\"'”’)\]]*$")


def cut_lead(passages: Sequence[str], words: int = LEAD_WORDS) -> str | None:
    """The first words of the first passage that has any, the question not read; None where none has.

    Args:
        passages: texts.
        words: of the answer, at most: it ends in mid-sentence.
    """
    return next((" ".join(text.split()[:words]) for text in passages if text.strip()), None)


def best_sentence(question: str, passages: Sequence[str]) -> str | None:
    """The passage sentence that shares most content words with the question; of equal ones the shortest.

    A line that no mark ends is no sentence but a title, as long as there is a sentence.

    Args:
        question: the question.
        passages: texts, in sentences or not.

    Returns:
        None where no passage has a word.
    """
    asked = set(content_words(question))
    lines = [" ".join(match.group().split()) for text in passages for match in _SENTENCE.finditer(text)]
    sentences = [line for line in lines if _ENDS.search(line)] or lines
    return max(sentences, key=lambda text: (len(asked.intersection(content_words(text))), -len(text)), default=None)
