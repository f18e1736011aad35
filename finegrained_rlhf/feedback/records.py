"""Feedback records: prompts with passages, and what people said of the answers to them.

A broken record raises `DataError` with the field in the words of the published files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from finegrained_rlhf.core.checks import require, require_text
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.taxonomy import QA_FEEDBACK, Taxonomy

C1_TYPES = tuple(QA_FEEDBACK.categories["relevance"].types)
"""Error types of QA-FEEDBACK's category C1 (relevance), marked per sub-sentence."""
C2_TYPES = tuple(QA_FEEDBACK.categories["factuality"].types)
"""Error types of its category C2 (factuality), marked per sentence."""
PREDICTIONS = 4
"""Answers of a record of QA-FEEDBACK."""
TIE, FIRST, SECOND = 0, 1, 2
"""Values of a preference."""


def pair_order(answers: int) -> tuple[tuple[int, int], ...]:
    """Which two answers (from 0) each preference compares: 0 with 1, 0 with 2 and so on, then 1 with 2."""
    return tuple((i, j) for i in range(answers) for j in range(i + 1, answers))


PAIR_ORDER = pair_order(PREDICTIONS)
"""That of QA-FEEDBACK's six preferences."""


def ranking_preferences(ranking: Sequence[Sequence[int]], answers: int) -> tuple[int, ...]:
    """The preferences, in the order of `pair_order`, of a ranking: groups of answers (from 0), the best first.

    Answers of one group tie.

    Raises:
        DataError: an answer is not ranked, or twice, or is none.
    """
    places = {answer: place for place, group in enumerate(ranking) for answer in group}
    require(
        sorted(answer for group in ranking for answer in group) == list(range(answers)),
        f"expected each of the {answers} answers once, got {[list(group) for group in ranking]}",
        "ranking",
    )
    return tuple(
        TIE if places[i] == places[j] else FIRST if places[i] < places[j] else SECOND for i, j in pair_order(answers)
    )


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
    """One marked span of an answer.

    Attributes:
        start: character offset of the first character.
        end: character offset after the last character.
        error_type: a type of the taxonomy.
        explanation: the annotator's words; None where the key is absent.
        evidence: passage sentences that show it, as (passage, sentence), both counted from 1; 0 is the title.
        annotators: who marked it; empty where nobody is named.
    """

    start: int
    end: int
    error_type: str
    explanation: str | None = None
    evidence: tuple[tuple[int, int], ...] = ()
    annotators: tuple[str, ...] = ()


@dataclass(frozen=True)
class MissingInfo:
    """Passage sentences that the answer should have used.

    Attributes:
        error_type: a type of missing information of the taxonomy.
        passage_id: the passage, counted from 1.
        sentence_ids: its sentences, counted from 1; 0 is the title.
        annotators: who says so; empty where nobody is named.
    """

    error_type: str
    passage_id: int
    sentence_ids: tuple[int, ...]
    annotators: tuple[str, ...] = ()


@dataclass(frozen=True)
class Feedback:
    """Fine-grained feedback on one answer.

    Attributes:
        errors: marked spans.
        missing_info: what is missing.
        corrected_prediction: the human's corrected answer; empty where nothing of it could be kept, None where nobody
            was asked for it.
        annotators: everybody who looked at the answer; empty where nobody is named.
        dropped: spans that some annotator marked and adjudication left out.
    """

    errors: tuple[SpanError, ...]
    missing_info: tuple[MissingInfo, ...]
    corrected_prediction: str | None
    annotators: tuple[str, ...] = ()
    dropped: tuple[SpanError, ...] = ()


@dataclass(frozen=True)
class FeedbackRecord:
    """Answers to one question with what people said of them.

    Attributes:
        id: unique within a file.
        question: the question.
        passages: the passages with their sentences; may be empty.
        predictions: N ≥ 1 answers, none empty.
        feedback: span feedback on `predictions[0]`; None where it was not marked.
        preferences: judgements of all N(N−1)/2 pairs in the order of `pair_order`: 1 = first better, 2 = second better,
            0 = tie, None where nobody said; empty where no pair was judged.
        gold: a human reference answer, where there is one.
        more_feedback: span feedback on other answers, by index (from 1).
    """

    id: str
    question: str
    passages: tuple[Passage, ...]
    predictions: tuple[str, ...]
    feedback: Feedback | None
    preferences: tuple[int | None, ...] = ()
    gold: str | None = None
    more_feedback: Mapping[int, Feedback] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_text(self.id, "id")
        require_text(self.question, "question")
        if self.gold is not None:
            require_text(self.gold, "gold")
        require(len(self.predictions) > 0, "expected at least one answer, got none", "prediction 1")
        for i, prediction in enumerate(self.predictions, start=1):
            require_text(prediction, f"prediction {i}")
        _check_passages(self.passages)
        for i in self.more_feedback:
            require(0 < i < len(self.predictions), f"there is no prediction {i + 1}", f"feedback {i + 1}")
        for i, feedback in self.marked.items():
            _check_feedback(feedback, self.predictions[i], self.passages, i)
        _check_preferences(self.preferences, len(self.predictions))
        has_feedback = bool(self.marked) or any(value is not None for value in self.preferences)
        require(has_feedback, "expected feedback on an answer or a preference, got neither", "feedback")

    @property
    def marked(self) -> Mapping[int, Feedback]:
        """The feedback on each answer that was marked, by its index in `predictions`."""
        first = {} if self.feedback is None else {0: self.feedback}
        return {**first, **{i: self.more_feedback[i] for i in sorted(self.more_feedback)}}


def feedback_key(answer: int) -> str:
    """The key of the feedback on an answer (from 0) in the files: `feedback`, `feedback 2` and so on."""
    return "feedback" if answer == 0 else f"feedback {answer + 1}"


def check_types(record: FeedbackRecord, taxonomy: Taxonomy) -> None:
    """Refuse a record with a type of span, or of missing information, that the taxonomy does not have.

    Raises:
        DataError: naming the field.
    """
    for i, feedback in record.marked.items():
        key = feedback_key(i)
        named = [(f"{key}.errors[{j}]", error.error_type) for j, error in enumerate(feedback.errors)]
        named += [(f"{key}.dropped[{j}]", error.error_type) for j, error in enumerate(feedback.dropped)]
        for at, name in named:
            _check_type(name, tuple(taxonomy.error_types), at)
        for j, missing in enumerate(feedback.missing_info):
            _check_type(missing.error_type, tuple(taxonomy.missing), f"{key}.missing-info[{j}]")


def _check_type(name: str, known: Sequence[str], at: str) -> None:
    expected = f"expected one of {', '.join(known)}" if known else "the taxonomy has none of this kind"
    require(name in known, f"unknown error type {name!r}, {expected}", f"{at}.error type")


def _check_feedback(feedback: Feedback, text: str, passages: Sequence[Passage], answer: int) -> None:
    key = feedback_key(answer)
    for j, error in enumerate(feedback.errors):
        _check_span(error, text, passages, answer, f"{key}.errors[{j}]")
    for j, error in enumerate(feedback.dropped):
        _check_span(error, text, passages, answer, f"{key}.dropped[{j}]")
    for j, missing in enumerate(feedback.missing_info):
        _check_missing(missing, passages, f"{key}.missing-info[{j}]")
    if feedback.corrected_prediction is not None:
        require_text(feedback.corrected_prediction, f"{key}.corrected-prediction", empty=True)


def _check_span(error: SpanError, text: str, passages: Sequence[Passage], answer: int, field: str) -> None:
    length, span = len(text), f"{error.start}:{error.end}"
    require(error.start >= 0, f"span {span} starts before the text", f"{field}.start")
    require(
        error.end <= length,
        f"span {span} ends after prediction {answer + 1}, which has {length} characters",
        f"{field}.end",
    )
    require(error.start < error.end, f"span {span} is empty or reversed, expected start < end", f"{field}.end")
    require(bool(text[error.start : error.end].strip()), f"span {span} covers white space only", f"{field}.start")
    if error.explanation is not None:
        require_text(error.explanation, f"{field}.explanation", empty=True)
    for passage, sentence in error.evidence:
        _check_sentences(passage, (sentence,), passages, f"{field}.evidence")


def _check_missing(missing: MissingInfo, passages: Sequence[Passage], field: str) -> None:
    require(len(missing.sentence_ids) > 0, "expected at least one sentence id, got none", f"{field}.sentence_id")
    _check_sentences(missing.passage_id, missing.sentence_ids, passages, field)


def _check_sentences(passage: int, sentences: Sequence[int], passages: Sequence[Passage], field: str) -> None:
    require(
        1 <= passage <= len(passages),
        f"passage {passage} does not exist, expected 1 to {len(passages)}",
        f"{field}.passage_id",
    )
    last = len(passages[passage - 1].sentences)
    for sentence in sentences:
        require(
            0 <= sentence <= last,
            f"sentence {sentence} does not exist in passage {passage}, expected 0 (title) to {last}",
            f"{field}.sentence_id",
        )


def _check_preferences(preferences: Sequence[int | None], answers: int) -> None:
    count = len(pair_order(answers))
    require(
        len(preferences) in (0, count),
        f"expected {count} judgements (1v2 … {answers - 1}v{answers}), got {len(preferences)}",
        "preference",
    )
    for i, value in enumerate(preferences):
        require(value in (None, TIE, FIRST, SECOND), f"expected 0, 1 or 2, got {value!r}", f"preference[{i}]")
