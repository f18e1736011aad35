"""Labels of the segments of an answer, from the spans that people marked in it.

Knows feedback records and segments. Does not know which error types are whose (`reward_models/kinds/`), tokens or
models. Source: thesis app. D and tasks/qa_feedback/reward_modeling/create_rel_fact_rm_files.py of the original
code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from finegrained_rlhf.feedback.records import C2_TYPES, FeedbackRecord, SpanError
from finegrained_rlhf.text.segmentation import Span, trim

HAS_ERROR, NO_ERROR = 1, 0
"""Values of a segment label; None means that the segment teaches nothing."""
MIN_SPAN_WORDS = 5
"""C1 spans with fewer words are dropped before labelling; C2 spans never are."""


@dataclass(frozen=True)
class SegmentLabels:
    """Labels of the segments of prediction 1.

    Attributes:
        spans: character spans of the segments.
        labels: one a span: 1 has an error, 0 has none, None is ignored in training.
    """

    spans: tuple[Span, ...]
    labels: tuple[int | None, ...]

    def __post_init__(self) -> None:
        if len(self.spans) != len(self.labels):
            raise ValueError(f"{len(self.spans)} segments and {len(self.labels)} labels")

    @property
    def has_error(self) -> int:
        """Segments labelled 1."""
        return self.labels.count(HAS_ERROR)

    @property
    def no_error(self) -> int:
        """Segments labelled 0."""
        return self.labels.count(NO_ERROR)

    @property
    def teaches(self) -> bool:
        """Whether any segment has a label; examples without one are left out of training."""
        return any(label is not None for label in self.labels)


def usable_errors(
    record: FeedbackRecord, types: Sequence[str], min_words: int = MIN_SPAN_WORDS
) -> tuple[SpanError, ...]:
    """The record's errors of the given types, without C1 spans of fewer than `min_words` white-space words."""
    text = record.predictions[0]
    return tuple(
        error
        for error in record.feedback.errors
        if error.error_type in types
        and (error.error_type in C2_TYPES or len(text[error.start : error.end].split()) >= min_words)
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
