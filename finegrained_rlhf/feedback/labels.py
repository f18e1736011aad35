"""Labels of the segments of an answer, from the spans that people marked in it, and spans that a model suggests to
them.

Which error types are whose is in `reward_models/kinds.py`. Source: thesis app. D and
tasks/qa_feedback/reward_modeling/create_rel_fact_rm_files.py of the original code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from finegrained_rlhf.core.checks import require
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.feedback.records import Feedback, SpanError
from finegrained_rlhf.feedback.taxonomy import Category, Density, Taxonomy
from finegrained_rlhf.text.edits import edit_mass
from finegrained_rlhf.text.segmentation import Segmenter, Span, trim

HAS_ERROR, NO_ERROR = 1, 0
"""Values of a segment label; None means that the segment teaches nothing."""


@dataclass(frozen=True)
class SegmentLabels:
    """Labels of the segments of an answer.

    Attributes:
        spans: character spans of the segments.
        labels: one a span: 1 has an error, 0 has none, None is ignored in training; or how many words were changed.
        agreement: share of the annotators who agree with each label, in [0, 1]; empty where nobody is named.
    """

    spans: tuple[Span, ...]
    labels: tuple[int | None, ...]
    agreement: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.spans) != len(self.labels) or len(self.agreement) not in (0, len(self.labels)):
            raise ValueError(f"{len(self.spans)} segments and {len(self.labels)} labels")

    @property
    def has_error(self) -> int:
        """Segments with an error, or with words that were changed."""
        return sum(bool(label) for label in self.labels)

    @property
    def no_error(self) -> int:
        """Segments labelled 0."""
        return self.labels.count(NO_ERROR)

    @property
    def teaches(self) -> bool:
        """Whether any segment has a label; examples without one are left out of training."""
        return any(label is not None for label in self.labels)


def usable_errors(
    text: str, errors: Sequence[SpanError], types: Sequence[str], min_words: Mapping[str, int]
) -> tuple[SpanError, ...]:
    """The errors of the given types, without those of fewer words, divided by white space, than their type needs."""
    return tuple(
        error
        for error in errors
        if error.error_type in types
        and len(text[error.start : error.end].split()) >= min_words.get(error.error_type, 0)
    )


def touches(text: str, segment: Span, errors: Sequence[SpanError]) -> bool:
    """Whether an error covers a character of the segment that is not white space."""
    start, end = segment
    return any(
        error.start < end
        and error.end > start
        and trim((max(start, error.start), min(end, error.end)), text) is not None
        for error in errors
    )


def segment_labels(
    text: str, spans: Sequence[Span], errors: Sequence[SpanError], hidden: Sequence[SpanError] = ()
) -> SegmentLabels:
    """Label of each segment: 1 where one of `errors` touches it, None where only one of `hidden` does, else 0.

    Args:
        text: that is cut.
        spans: character spans of its segments.
        errors: that make a segment wrong.
        hidden: that keep people from looking for `errors`, so that the segment says nothing.
    """
    labels: list[int | None] = []
    for span in spans:
        if touches(text, span, errors):
            labels.append(HAS_ERROR)
        else:
            labels.append(None if touches(text, span, hidden) else NO_ERROR)
    return SegmentLabels(tuple(spans), tuple(labels))


def annotator_agreement(
    text: str, labels: SegmentLabels, marks: Sequence[SpanError], annotators: Sequence[str]
) -> tuple[float, ...]:
    """Of each segment the share of the annotators who agree with its label.

    One says "has an error" who made a mark that touches the segment, and "no error" who made none.

    Args:
        text: the answer.
        labels: of its segments.
        marks: of all annotators, those that adjudication dropped included.
        annotators: everybody who looked at the answer, at least one.
    """
    by_whom = {name: [mark for mark in marks if name in mark.annotators] for name in annotators}
    shares = []
    for span, label in zip(labels.spans, labels.labels, strict=True):
        claimed = sum(touches(text, span, spans) for spans in by_whom.values()) / len(annotators)
        shares.append(claimed if label == HAS_ERROR else 1.0 - claimed)
    return tuple(shares)


@dataclass(frozen=True, kw_only=True)
class SegmentRule:
    """How an answer is cut and its segments are labelled, from the spans of one category.

    Attributes:
        density: what gets a label of its own.
        errors: types of span that make the segment they touch wrong.
        unlabelled: types that leave a segment which only they touch without a label: it teaches nothing.
        min_words: by type, the least words of a span, divided by white space, that is not dropped.
        separator: of density `own`: a regular expression that stands between the segments.
        words_up_to: as for `Category`.
    """

    density: Density
    errors: tuple[str, ...]
    unlabelled: tuple[str, ...] = ()
    min_words: Mapping[str, int] = field(default_factory=dict)
    separator: str | None = None
    words_up_to: int = 0

    def __post_init__(self) -> None:
        if not self.errors or set(self.errors) & set(self.unlabelled):
            raise ConfigError(f"labels of segments need error types, none of them also in `unlabelled`: {self.errors}")
        if (self.density == "own") != (self.separator is not None):
            raise ConfigError("a separator belongs to density own")

    @classmethod
    def of_category(cls, category: Category, taxonomy: Taxonomy) -> SegmentRule:
        """The rule of a category of a taxonomy."""
        hidden = [taxonomy.categories[name] for name in category.hidden_by]
        return SegmentRule(
            density=category.density,
            errors=tuple(category.types),
            unlabelled=tuple(name for other in hidden for name in other.types),
            min_words={
                name: other.min_words for other in (category, *hidden) if other.min_words for name in other.types
            },
            separator=category.separator,
            words_up_to=category.words_up_to,
        )

    def cut(self, text: str, segmenter: Segmenter) -> list[Span]:
        """The segments of `text` that are judged, as character spans."""
        if self.density == "sentence":
            return segmenter.sentences(text)
        if self.density == "sub_sentence":
            return segmenter.sub_sentences(text)
        borders = [0, len(text)]
        if self.separator is not None:
            borders[1:1] = [place for match in re.finditer(self.separator, text) for place in match.span()]
        pieces = [trim((borders[i], borders[i + 1]), text) for i in range(0, len(borders), 2)]
        return [piece for piece in pieces if piece is not None]

    def usable(self, text: str, feedback: Feedback) -> tuple[SpanError, ...]:
        """The marks of an answer that count: of the right types, and not too short."""
        return usable_errors(text, feedback.errors, self.errors, self.min_words)

    def label(self, text: str, feedback: Feedback, segmenter: Segmenter) -> SegmentLabels:
        """Label of each segment of an answer: 1 where one of `errors` touches it, else None or 0 (`unlabelled`).

        With how many of the annotators agree, where they are named. With `words_up_to`, how many words were changed.

        Raises:
            DataError: changed words are to be counted, and nobody was asked for a correction.
        """
        if self.words_up_to:
            if feedback.corrected_prediction is None:
                raise DataError("expected a correction, whose changed words are counted", field="corrected_prediction")
            spans = tuple(self.cut(text, segmenter))
            changed = edit_mass(text, feedback.corrected_prediction, spans)
            return SegmentLabels(spans, tuple(min(words, self.words_up_to) for words in changed))
        hidden = usable_errors(text, feedback.errors, self.unlabelled, self.min_words)
        made = segment_labels(text, self.cut(text, segmenter), self.usable(text, feedback), hidden)
        if not feedback.annotators:
            return made
        every = usable_errors(text, (*feedback.errors, *feedback.dropped), self.errors, self.min_words)
        return replace(made, agreement=annotator_agreement(text, made, every, feedback.annotators))


@dataclass(frozen=True)
class Suggestion:
    """A span that a model suggests.

    Attributes:
        start: character offset in the marked answer.
        end: after the last character.
        error_type: of the taxonomy.
        score: how sure the model is, in [0, 1]; None for a model that does not say.
        model_version: which model.
    """

    start: int
    end: int
    error_type: str
    score: float | None
    model_version: str

    def __post_init__(self) -> None:
        require(0 <= self.start < self.end, f"expected 0 <= start < end, got {self.start} and {self.end}", "start")
        sure = self.score is None or 0 <= self.score <= 1
        require(sure, f"expected 0 to 1, got {self.score}", "score")
