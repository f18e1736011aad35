"""The texts that policies and reward models read, one template each for training and scoring.

Reward-model inputs are given as pieces, so that separators can be placed as token ids. Source: thesis ch. 6 and the
original data (`text` of `dev.json`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class PassageText(Protocol):
    """A passage as templates see it (`dialogue.records.Passage` is one)."""

    @property
    def title(self) -> str:
        """The page's title."""
        ...

    @property
    def text(self) -> str:
        """The passage without its title."""
        ...


def context_text(passages: Sequence[PassageText]) -> str:
    """`wikipage: {title} text: {passage} | wikipage: …`; empty without passages."""
    return " | ".join(f"wikipage: {passage.title} text: {passage.text}" for passage in passages)


def task_text(question: str, passages: Sequence[PassageText]) -> str:
    """The policy's input: `question: {q} context: wikipage: {title} text: {passage} | wikipage: …`."""
    return f"question: {question} context: {context_text(passages)}"


class NamedPassage(PassageText, Protocol):
    """A passage that answers can name."""

    @property
    def id(self) -> str:
        """Its name."""
        ...


def conversation_text(turns: Sequence[str], kept: Sequence[int] | None = None) -> str:
    """`question 1: {u} answer 1: {a} question 2: {u}`, oldest first (INSCIT's reader, thesis ch. 5).

    Args:
        turns: what was said, the user first.
        kept: which utterances are put, from 0, with the numbers they have in the whole; None puts all.
    """
    roles = ("question", "answer")
    places = range(len(turns)) if kept is None else kept
    return " ".join(f"{roles[i % 2]} {i // 2 + 1}: {turns[i]}" for i in places)


def evidence_text(passage: NamedPassage) -> str:
    """`evidence: {id} title: {titles} context: {passage}`, as INSCIT's reader has it."""
    return f"evidence: {passage.id} title: {passage.title} context: {passage.text}"


def conversation_task_text(turns: Sequence[str], passages: Sequence[NamedPassage]) -> str:
    """A conversation and all passages that may answer its last turn, as one text."""
    return " ".join([conversation_text(turns), *map(evidence_text, passages)])


def squeeze(text: str) -> str:
    """`text` with every run of white space as one space and none at the ends.

    Reward models read squeezed text: the published prompt and feedback files differ in white space alone.
    """
    return " ".join(text.split())


def relevance_input(question: str, segments: Sequence[str], sep: str) -> list[str]:
    """Pieces of the relevance (R1) input `question: {q} answer: </s> seg1 </s> seg2 …`.

    Args:
        question: the question; the passages are not shown.
        segments: texts of the sub-sentences, in order.
        sep: the separator token.

    Returns:
        [head, sep, segment 1, sep, segment 2, …]: the separator before segment j (from 0) is piece 2·j + 1, and
        `" ".join` of the pieces is the whole input.
    """
    return _with_segments(f"question: {question} answer:", segments, sep)


def factuality_input(question: str, context: str, segments: Sequence[str], sep: str) -> list[str]:
    """Pieces of the factuality (R2) input `question: {q} context: {passages} answer: </s> sent1 </s> sent2 …`.

    Args:
        question: the question.
        context: the passages as `context_text` puts them.
        segments: texts of the sentences, in order.
        sep: the separator token.

    Returns:
        Pieces as in `relevance_input`.
    """
    return _with_segments(f"question: {question} context: {context} answer:", segments, sep)


def completeness_input(task: str, answer: str) -> str:
    """The completeness (R3) and preference input: task text, then ` answer: {y}`."""
    return f"{squeeze(task)} answer: {squeeze(answer)}".rstrip()


def _with_segments(head: str, segments: Sequence[str], sep: str) -> list[str]:
    pieces = [squeeze(head)]
    for segment in segments:
        pieces += [sep, squeeze(segment)]
    return pieces
