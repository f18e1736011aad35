"""The kinds of reward model by name: a taxonomy's categories, what it says is missing, and its preferences.

A kind says what is judged, how its labels are made and what is read. There are two forms: a segment kind is data alone,
so that one is built from a category of a taxonomy; pair kinds compare answers. Everything else in `reward_models` asks
the kind and never compares its name; files and configurations hold the name. Source: thesis ch. 6 and app. D.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.feedback.labels import SegmentLabels, SegmentRule
from finegrained_rlhf.feedback.records import FeedbackRecord, SpanError
from finegrained_rlhf.feedback.taxonomy import QA_FEEDBACK, Category, Density, Taxonomy
from finegrained_rlhf.runtime.console import tracked
from finegrained_rlhf.text.segmentation import Segmenter
from finegrained_rlhf.text.templates import PassageText
from reward_models.pairs import Matching, PairSet, pair_set
from reward_models.parts import InputParts, answer_parts, factuality_parts, relevance_parts

Form = Literal["segment", "sequence"]
"""Whether a model labels each segment of an answer, or gives the whole answer one score."""
GlobalAttention = Literal["none", "first", "separators"]
"""Which tokens of a Longformer see everything: none, the class token, or it and the separators."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of reward model; what there is, is a `SegmentKind` or a `PairKind`.

    Attributes:
        name: in files, configurations and directories.
        density: what gets a value of its own.
        reads_passages: whether the input shows the passages.
        selected_by: the validation metric that the best checkpoint has most of.
    """

    form: ClassVar[Form]
    headline: ClassVar[tuple[str, ...]]
    """The validation metrics that are printed at the end of a training."""

    name: str
    density: Density
    reads_passages: bool
    selected_by: str = "accuracy"

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ConfigError(f"a reward model kind needs a name of letters, digits and _, got {self.name!r}")
        known = self.density in get_args(Density)
        if not known or (self.form == "sequence" and self.density != "response"):
            raise ConfigError(f"reward model kind {self.name}: a {self.form} model cannot judge each {self.density!r}")


@dataclass(frozen=True, kw_only=True)
class SegmentKind(Kind, SegmentRule):
    """A kind that says of each segment of an answer whether it has an error. Its fields: see `SegmentRule`.

    Of QA-FEEDBACK: R1, relevance, reads the question and the sub-sentences; R2, factuality, reads question, passages
    and sentences. Annotators were told not to look for C2 errors inside C1 errors, so that a sentence with C1 errors
    alone says nothing about its facts: it gets no label.
    """

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


Compare = Callable[[Sequence[FeedbackRecord], Segmenter, Matching], PairSet]


@dataclass(frozen=True, kw_only=True)
class PairKind(Kind):
    """A kind that gives a whole answer one score, learnt from pairs of answers to one question, and reads passages.

    `preference`, the holistic baseline: which of two answers did people prefer, all errors weighed? `completeness`: how
    much of what was asked does the answer give? Its pairs are bootstrapped from the human corrections.

    Attributes:
        compare: from records, a segmenter and a way of matching sentences to the ordered pairs.
    """

    form: ClassVar[Form] = "sequence"
    headline: ClassVar[tuple[str, ...]] = ("accuracy",)

    density: Density = "response"
    reads_passages: bool = True
    compare: Compare

    def pairs(
        self, records: Sequence[FeedbackRecord], segmenter: Segmenter, matching: Matching = "original"
    ) -> PairSet:
        """Ordered pairs of the answers of each record, and how many comparisons there were."""
        return self.compare(records, segmenter, matching)

    def parts(self, question: str, passages: Sequence[PassageText], answer: str) -> InputParts:
        """What the model reads of a whole answer; the passages only where this kind is shown them."""
        return answer_parts(question, passages if self.reads_passages else (), answer)


def _by_preference(records: Sequence[FeedbackRecord], segmenter: Segmenter, matching: Matching) -> PairSet:
    """Pairs from the human preferences; the answers are neither cut nor matched."""
    return pair_set([(record, record.preferences) for record in records if record.preferences])


PREFERENCE = PairKind(name="preference", compare=_by_preference)


def completeness_kind(taxonomy: Taxonomy) -> PairKind:
    """The kind that learns what is missing, by the types of a taxonomy."""
    minor = frozenset(name for name, kind in taxonomy.missing.items() if kind.minor)

    def compare(records: Sequence[FeedbackRecord], segmenter: Segmenter, matching: Matching) -> PairSet:
        """Pairs from the completeness scores; records whose set S is empty are skipped."""
        from reward_models.completeness import completeness

        bar = tracked(records, "completeness pairs", len(records), "examples", after_s=2.0)
        scored = [(record, completeness(record, segmenter, matching, minor)) for record in bar]
        return pair_set([(record, result.preferences) for record, result in scored if result is not None])

    return PairKind(name="completeness", compare=compare)


def kinds_of(taxonomy: Taxonomy) -> Mapping[str, Kind]:
    """The kinds of reward model that learn from feedback with a taxonomy, by name.

    One a category; `completeness` where missing information is asked for, and corrections with it; `preference` where
    answers are compared.

    Raises:
        ConfigError: a category has the name of another kind.
    """
    kinds: dict[str, Kind] = {
        name: SegmentKind.of(category, taxonomy) for name, category in taxonomy.categories.items()
    }
    more: list[Kind] = [completeness_kind(taxonomy)] if taxonomy.missing and taxonomy.correction else []
    more += [PREFERENCE] if taxonomy.preferences else []
    for kind in more:
        if kind.name in kinds:
            raise ConfigError(f"taxonomy {taxonomy.name}: no category may be named {kind.name}")
        kinds[kind.name] = kind
    return kinds


RELEVANCE, FACTUALITY = (SegmentKind.of(QA_FEEDBACK.categories[n], QA_FEEDBACK) for n in ("relevance", "factuality"))
COMPLETENESS = completeness_kind(QA_FEEDBACK)
KINDS = kinds_of(QA_FEEDBACK)
"""Those of QA-FEEDBACK."""


def kind_named(name: str, kinds: Mapping[str, Kind] = KINDS) -> Kind:
    """The kind of this name.

    Raises:
        ConfigError: there is none.
    """
    if name not in kinds:
        raise ConfigError(f"reward model kind must be one of {', '.join(kinds)}, got {name!r}")
    return kinds[name]
