"""Models that say of each segment of an answer whether it has an error of one category.

Of QA-FEEDBACK: R1, relevance, reads the question and the sub-sentences, no passages; R2, factuality, reads question,
passages and sentences. Annotators were told not to look for C2 errors inside C1 errors, so that a sentence with C1
errors alone says nothing about its facts: it gets no label. Source: thesis ch. 6 and app. D.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.feedback.records import FeedbackRecord, SpanError
from finegrained_rlhf.feedback.taxonomy import Category, Taxonomy
from finegrained_rlhf.text.segmentation import Segmenter, Span, trim
from finegrained_rlhf.text.templates import PassageText
from reward_models.kinds.base import Form, Kind
from reward_models.kinds.parts import InputParts, factuality_parts, relevance_parts
from reward_models.labels.segments import SegmentLabels, annotator_agreement, segment_labels, usable_errors


@dataclass(frozen=True, kw_only=True)
class SegmentKind(Kind):
    """A kind that says of each segment of an answer whether it has an error.

    Attributes:
        errors: types of span that make the segment they touch wrong.
        unlabelled: types that leave a segment which only they touch without a label: it teaches nothing.
        min_words: by type, the least words of a span, divided by white space, that is not dropped.
        separator: of density `own`: a regular expression that stands between the segments.
    """

    form: ClassVar[Form] = "segment"
    headline: ClassVar[tuple[str, ...]] = ("accuracy", "f1_has_error")

    errors: tuple[str, ...]
    unlabelled: tuple[str, ...] = ()
    min_words: Mapping[str, int] = field(default_factory=dict)
    separator: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.errors or set(self.errors) & set(self.unlabelled):
            raise ConfigError(f"reward model kind {self.name}: needs error types, none of them also in `unlabelled`")
        if (self.density == "own") != (self.separator is not None):
            raise ConfigError(f"reward model kind {self.name}: a separator belongs to density own")

    @classmethod
    def of(cls, category: Category, taxonomy: Taxonomy) -> SegmentKind:
        """The kind that learns a category of a taxonomy."""
        hidden = [taxonomy.categories[name] for name in category.hidden_by]
        return cls(
            name=category.name,
            density=category.density,
            reads_passages=category.reads_passages,
            errors=tuple(category.types),
            unlabelled=tuple(name for other in hidden for name in other.types),
            min_words={
                name: other.min_words for other in (category, *hidden) if other.min_words for name in other.types
            },
            separator=category.separator,
        )

    @classmethod
    def of_values(cls, name: str, values: Mapping[str, Any]) -> SegmentKind:
        """The inverse of `values`. Raises ConfigError or TypeError where they are none."""
        tuples = {key: tuple(values[key]) for key in ("errors", "unlabelled")}
        return cls(name=name, **{**values, **tuples})

    def values(self) -> dict[str, Any]:
        """Everything but the name, as JSON."""
        return {
            "density": self.density,
            "reads_passages": self.reads_passages,
            "errors": list(self.errors),
            "unlabelled": list(self.unlabelled),
            "min_words": dict(self.min_words),
            "separator": self.separator,
        }

    def with_min_words(self, words: int | None) -> SegmentKind:
        """With another least number of words for the types that have one; None changes nothing."""
        return self if words is None else replace(self, min_words=dict.fromkeys(self.min_words, words))

    def cut(self, text: str, segmenter: Segmenter) -> list[Span]:
        """The segments of `text` that are judged, as character spans."""
        if self.density == "sentence":
            return segmenter.sentences(text)
        if self.density == "sub_sentence":
            return segmenter.sub_sentences(text)
        borders = [0, len(text)]
        if self.separator is not None:
            borders[1:1] = [place for found in re.finditer(self.separator, text) for place in found.span()]
        pieces = [trim((borders[i], borders[i + 1]), text) for i in range(0, len(borders), 2)]
        return [piece for piece in pieces if piece is not None]

    def marks(self, record: FeedbackRecord, answer: int = 0) -> tuple[SpanError, ...]:
        """The marked spans of an answer (from 0) that this kind learns from."""
        feedback = record.marked[answer]
        return usable_errors(record.predictions[answer], feedback.errors, self.errors, self.min_words)

    def labels(self, record: FeedbackRecord, segmenter: Segmenter, answer: int = 0) -> SegmentLabels:
        """Label of each segment of a marked answer: 1 where one of `errors` touches it, else None or 0 (`unlabelled`).

        With how many of the annotators agree, where they are named.
        """
        text, feedback = record.predictions[answer], record.marked[answer]
        spans = self.cut(text, segmenter)
        hidden = usable_errors(text, feedback.errors, self.unlabelled, self.min_words)
        made = segment_labels(text, spans, self.marks(record, answer), hidden)
        if not feedback.annotators:
            return made
        every = usable_errors(text, (*feedback.errors, *feedback.dropped), self.errors, self.min_words)
        return replace(made, agreement=annotator_agreement(text, made, every, feedback.annotators))

    def parts(self, question: str, passages: Sequence[PassageText], segments: Sequence[str]) -> InputParts:
        """What the model reads of an answer in `segments`; the passages only where this kind is shown them."""
        if self.reads_passages:
            return factuality_parts(question, passages, segments)
        return relevance_parts(question, segments)
