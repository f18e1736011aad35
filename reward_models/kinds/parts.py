"""What reward models read, in words: one function a layout, for training and scoring alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
