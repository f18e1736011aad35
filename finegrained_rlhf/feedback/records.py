"""QA-FEEDBACK records: prompts with passages, and human feedback on four answers.

Knows what a valid record is, whoever made it (a file, FactWorld's oracle, a test). Does not know files, segments,
tokens or labels. A broken record raises `DataError` with the field in the words of the published files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from finegrained_rlhf.core.checks import require, require_text
from finegrained_rlhf.dialogue.records import Passage

C1_TYPES = ("Irrelevant", "Redundant", "Incoherent")
"""Error types of category C1 (relevance), marked per sub-sentence."""
C2_TYPES = ("Wrong-Grounding", "Unverifiable")
"""Error types of category C2 (factuality), marked per sentence."""
MISSING_TYPES = ("Missing-Answer", "Missing-Major-Auxiliary", "Missing-Minor-Auxiliary")
"""Types of missing information (category C3, completeness)."""
PREDICTIONS = 4
"""Answers a feedback record holds; span feedback is on the first one only."""
PAIR_ORDER = ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))
"""Which two predictions (from 0) each of the six preferences compares."""
TIE, FIRST, SECOND = 0, 1, 2
"""Values of a preference."""


def derived_id(question: str, passages: Sequence[Passage]) -> str:
    """An id made of the question and passages alone: the same in the prompt file and the feedback file.

    White space is left out of the hash because the two files join sentences differently.
    """
    text = "\x00".join([question, *(part for passage in passages for part in (passage.title, passage.text))])
    return f"qa-{hashlib.blake2b(''.join(text.split()).encode(), digest_size=6).hexdigest()}"


def _check_passages(passages: Sequence[Passage]) -> None:
    for i, passage in enumerate(passages):
        require_text(passage.title, f"passages[{i}][0]", empty=True)
        for j, sentence in enumerate(passage.sentences, start=1):
            require_text(sentence, f"passages[{i}][{j}]", empty=True)


@dataclass(frozen=True)
class QAExample:
    """One prompt of the policy with its references.

    Attributes:
        id: unique within a file.
        question: the question.
        text: the task text, exactly what the policy reads.
        references: one human answer or more.
        passages: the passages in the order of the task text; may be empty.
    """

    id: str
    question: str
    text: str
    references: tuple[str, ...]
    passages: tuple[Passage, ...]

    def __post_init__(self) -> None:
        require_text(self.id, "id")
        require_text(self.question, "question")
        require_text(self.text, "text")
        require(len(self.references) > 0, "expected at least one reference answer, got none", "answer")
        for i, reference in enumerate(self.references):
            require_text(reference, f"answer[{i}]")
        _check_passages(self.passages)


@dataclass(frozen=True)
class SpanError:
    """One marked span of prediction 1.

    Attributes:
        start: character offset of the first character.
        end: character offset after the last character.
        error_type: one of `C1_TYPES` or `C2_TYPES`.
        explanation: the annotator's words; None where the key is absent.
    """

    start: int
    end: int
    error_type: str
    explanation: str | None = None


@dataclass(frozen=True)
class MissingInfo:
    """Passage sentences that the answer should have used.

    Attributes:
        error_type: one of `MISSING_TYPES`.
        passage_id: the passage, counted from 1.
        sentence_ids: its sentences, counted from 1; 0 is the title.
    """

    error_type: str
    passage_id: int
    sentence_ids: tuple[int, ...]


@dataclass(frozen=True)
class Feedback:
    """Fine-grained feedback on prediction 1.

    Attributes:
        errors: marked spans (C1 and C2).
        missing_info: what is missing (C3).
        corrected_prediction: the human's corrected answer; empty where nothing of it could be kept.
    """

    errors: tuple[SpanError, ...]
    missing_info: tuple[MissingInfo, ...]
    corrected_prediction: str


@dataclass(frozen=True)
class FeedbackRecord:
    """Four answers to one question with span feedback on the first and preferences among all.

    Attributes:
        id: unique within a file.
        question: the question.
        passages: the passages with their sentences; may be empty.
        gold: the human reference answer.
        predictions: four sampled answers, none empty.
        feedback: span feedback on `predictions[0]`.
        preferences: six judgements in the order of `PAIR_ORDER`: 1 = first better, 2 = second better, 0 = tie.
    """

    id: str
    question: str
    passages: tuple[Passage, ...]
    gold: str
    predictions: tuple[str, ...]
    feedback: Feedback
    preferences: tuple[int, ...]

    def __post_init__(self) -> None:
        require_text(self.id, "id")
        require_text(self.question, "question")
        require_text(self.gold, "gold")
        require(
            len(self.predictions) == PREDICTIONS,
            f"expected {PREDICTIONS} predictions, got {len(self.predictions)}",
            "prediction 1",
        )
        for i, prediction in enumerate(self.predictions, start=1):
            require_text(prediction, f"prediction {i}")
        _check_passages(self.passages)
        for i, error in enumerate(self.feedback.errors):
            _check_span(error, self.predictions[0], f"feedback.errors[{i}]")
        for i, missing in enumerate(self.feedback.missing_info):
            _check_missing(missing, self.passages, f"feedback.missing-info[{i}]")
        require_text(self.feedback.corrected_prediction, "feedback.corrected-prediction", empty=True)
        _check_preferences(self.preferences)


def _check_span(error: SpanError, text: str, field: str) -> None:
    types = C1_TYPES + C2_TYPES
    require(
        error.error_type in types,
        f"unknown error type {error.error_type!r}, expected one of {', '.join(types)}",
        f"{field}.error type",
    )
    length, span = len(text), f"{error.start}:{error.end}"
    require(error.start >= 0, f"span {span} starts before the text", f"{field}.start")
    require(error.end <= length, f"span {span} ends after prediction 1, which has {length} characters", f"{field}.end")
    require(error.start < error.end, f"span {span} is empty or reversed, expected start < end", f"{field}.end")
    require(bool(text[error.start : error.end].strip()), f"span {span} covers white space only", f"{field}.start")
    if error.explanation is not None:
        require_text(error.explanation, f"{field}.explanation", empty=True)


def _check_missing(missing: MissingInfo, passages: Sequence[Passage], field: str) -> None:
    require(
        missing.error_type in MISSING_TYPES,
        f"unknown error type {missing.error_type!r}, expected one of {', '.join(MISSING_TYPES)}",
        f"{field}.error type",
    )
    require(
        1 <= missing.passage_id <= len(passages),
        f"passage {missing.passage_id} does not exist, expected 1 to {len(passages)}",
        f"{field}.passage_id",
    )
    require(len(missing.sentence_ids) > 0, "expected at least one sentence id, got none", f"{field}.sentence_id")
    last = len(passages[missing.passage_id - 1].sentences)
    for sentence in missing.sentence_ids:
        require(
            0 <= sentence <= last,
            f"sentence {sentence} does not exist in passage {missing.passage_id}, expected 0 (title) to {last}",
            f"{field}.sentence_id",
        )


def _check_preferences(preferences: Sequence[int]) -> None:
    count = len(PAIR_ORDER)
    require(
        len(preferences) == count,
        f"expected {count} judgements (1v2 … 3v4), got {len(preferences)}",
        "preference",
    )
    for i, value in enumerate(preferences):
        require(value in (TIE, FIRST, SECOND), f"expected 0, 1 or 2, got {value!r}", f"preference[{i}]")
