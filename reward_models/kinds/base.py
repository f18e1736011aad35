"""What a kind of reward model is: what it judges, how its labels are made, what it reads, how the paper trained it.

Knows feedback records, segmenters and words. Knows no tokens, no models and no training. The two forms are all there
is: a segment kind is data alone (error types, density, whether passages are shown), so that one can be built from a
configuration; a pair kind also has the function that compares answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.feedback.records import FeedbackRecord, SpanError
from finegrained_rlhf.text.segmentation import Segmenter, Span
from finegrained_rlhf.text.templates import PassageText
from reward_models.kinds.parts import InputParts, answer_parts, factuality_parts, relevance_parts
from reward_models.labels.completeness import Matching
from reward_models.labels.pairs import PairSet
from reward_models.labels.segments import MIN_SPAN_WORDS, SegmentLabels, segment_labels, usable_errors

Form = Literal["segment", "sequence"]
"""Whether a model labels each segment of an answer, or gives the whole answer one score."""
LabelDensity = Literal["sub_sentence", "sentence", "response"]
GlobalAttention = Literal["none", "first", "separators"]
"""Which tokens of a Longformer see everything: none, the class token, or it and the separators."""


@dataclass(frozen=True)
class Recipe:
    """How the paper trained a kind (thesis, appendix D); `conf/reward_model/` says the same for the scripts.

    Attributes:
        lr: greatest learning rate.
        weight_decay: of AdamW.
        batch_size: records (segment kinds) or pairs (pair kinds) a step.
        epochs: passes over the examples; None where `steps` says how long.
        steps: training steps; None where `epochs` does.
        global_attention: of the Longformer.
    """

    lr: float
    weight_decay: float
    batch_size: int
    epochs: int | None = None
    steps: int | None = None
    global_attention: GlobalAttention = "none"

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise ConfigError("recipe of a reward model kind: set either epochs or steps")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of reward model; what there is, is a `SegmentKind` or a `PairKind`.

    Attributes:
        name: in files, configurations and directories.
        density: what gets a value of its own.
        reads_passages: whether the input shows the passages.
        recipe: how the paper trained it.
        selected_by: the validation metric that the best checkpoint has most of.
    """

    form: ClassVar[Form]
    headline: ClassVar[tuple[str, ...]]
    """The validation metrics that are printed at the end of a training."""

    name: str
    density: LabelDensity
    reads_passages: bool
    recipe: Recipe
    selected_by: str = "accuracy"

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ConfigError(f"a reward model kind needs a name of letters, digits and _, got {self.name!r}")
        if self.density not in get_args(LabelDensity) or (self.density == "response") != (self.form == "sequence"):
            raise ConfigError(f"reward model kind {self.name}: a {self.form} model cannot judge each {self.density!r}")


@dataclass(frozen=True, kw_only=True)
class SegmentKind(Kind):
    """A kind that says of each segment of an answer whether it has an error.

    Attributes:
        errors: types of span that make the segment they touch wrong.
        unlabelled: types that leave a segment which only they touch without a label: it teaches nothing.
    """

    form: ClassVar[Form] = "segment"
    headline: ClassVar[tuple[str, ...]] = ("accuracy", "f1_has_error")

    errors: tuple[str, ...]
    unlabelled: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.errors or set(self.errors) & set(self.unlabelled):
            raise ConfigError(f"reward model kind {self.name}: needs error types, none of them also in `unlabelled`")

    def cut(self, text: str, segmenter: Segmenter) -> list[Span]:
        """The segments of `text` that are judged, as character spans."""
        return segmenter.sentences(text) if self.density == "sentence" else segmenter.sub_sentences(text)

    def marks(self, record: FeedbackRecord, min_words: int = MIN_SPAN_WORDS) -> tuple[SpanError, ...]:
        """The marked spans of prediction 1 that this kind learns from."""
        return usable_errors(record, self.errors, min_words)

    def labels(self, record: FeedbackRecord, segmenter: Segmenter, min_words: int = MIN_SPAN_WORDS) -> SegmentLabels:
        """Label of each segment of prediction 1: 1 where one of `errors` touches it, else None or 0 (`unlabelled`)."""
        text = record.predictions[0]
        hidden = usable_errors(record, self.unlabelled, min_words)
        return segment_labels(text, self.cut(text, segmenter), self.marks(record, min_words), hidden)

    def parts(self, question: str, passages: Sequence[PassageText], segments: Sequence[str]) -> InputParts:
        """What the model reads of an answer in `segments`; the passages only where this kind is shown them."""
        if self.reads_passages:
            return factuality_parts(question, passages, segments)
        return relevance_parts(question, segments)


Compare = Callable[[Sequence[FeedbackRecord], Segmenter, Matching], PairSet]


@dataclass(frozen=True, kw_only=True)
class PairKind(Kind):
    """A kind that gives a whole answer one score, learnt from pairs of answers to one question.

    Attributes:
        compare: from records, a segmenter and a way of matching sentences to the ordered pairs.
    """

    form: ClassVar[Form] = "sequence"
    headline: ClassVar[tuple[str, ...]] = ("accuracy",)

    density: LabelDensity = "response"
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
