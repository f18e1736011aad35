"""Models that say of each segment of an answer whether it has an error of one category.

Of QA-FEEDBACK: R1, relevance, reads the question and the sub-sentences, no passages; R2, factuality, reads question,
passages and sentences. Annotators were told not to look for C2 errors inside C1 errors, so that a sentence with C1
errors alone says nothing about its facts: it gets no label. Source: thesis ch. 6 and app. D.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.feedback.labels import SegmentLabels, SegmentRule
from finegrained_rlhf.feedback.records import FeedbackRecord, SpanError
from finegrained_rlhf.feedback.taxonomy import Category, Taxonomy
from finegrained_rlhf.text.segmentation import Segmenter
from finegrained_rlhf.text.templates import PassageText
from reward_models.kinds.base import Form, Kind
from reward_models.kinds.parts import InputParts, factuality_parts, relevance_parts


@dataclass(frozen=True, kw_only=True)
class SegmentKind(Kind, SegmentRule):
    """A kind that says of each segment of an answer whether it has an error. Its fields: see `SegmentRule`."""

    form: ClassVar[Form] = "segment"
    headline: ClassVar[tuple[str, ...]] = ("accuracy", "f1_has_error")

    def __post_init__(self) -> None:
        Kind.__post_init__(self)
        try:
            SegmentRule.__post_init__(self)
        except ConfigError as error:
            raise ConfigError(f"reward model kind {self.name}: {error}") from None

    @classmethod
    def of(cls, category: Category, taxonomy: Taxonomy) -> SegmentKind:
        """The kind that learns a category of a taxonomy."""
        rule = SegmentRule.of_category(category, taxonomy)
        return cls(name=category.name, reads_passages=category.reads_passages, **vars(rule))

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
            "words_up_to": self.words_up_to,
        }

    @property
    def label_names(self) -> tuple[str, ...]:
        """Of the model's labels, in their order: no error, then an error, or errors of 1, 2, … changed words."""
        counted = tuple(f"{words}_words_error" for words in range(1, self.words_up_to + 1))
        return ("no_error", *(counted or ("has_error",)))

    def with_min_words(self, words: int | None) -> SegmentKind:
        """With another least number of words for the types that have one; None changes nothing."""
        return self if words is None else replace(self, min_words=dict.fromkeys(self.min_words, words))

    def marks(self, record: FeedbackRecord, answer: int = 0) -> tuple[SpanError, ...]:
        """The marked spans of an answer (from 0) that this kind learns from."""
        return self.usable(record.predictions[answer], record.marked[answer])

    def labels(self, record: FeedbackRecord, segmenter: Segmenter, answer: int = 0) -> SegmentLabels:
        """The labels of the segments of a marked answer (from 0)."""
        return self.label(record.predictions[answer], record.marked[answer], segmenter)

    def parts(self, question: str, passages: Sequence[PassageText], segments: Sequence[str]) -> InputParts:
        """What the model reads of an answer in `segments`; the passages only where this kind is shown them."""
        if self.reads_passages:
            return factuality_parts(question, passages, segments)
        return relevance_parts(question, segments)
