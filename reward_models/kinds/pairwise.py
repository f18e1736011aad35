"""Models that give a whole answer one score, learnt from pairs of answers to one question.

They read question, passages and the whole answer. `preference`, the holistic baseline: which of two answers did people
prefer, all errors weighed? `completeness`: how much of what was asked does the answer give? Its pairs are bootstrapped
from the human corrections (`labels/completeness.py`). Source: thesis ch. 6 and app. D.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from finegrained_rlhf.feedback.records import FeedbackRecord
from finegrained_rlhf.feedback.taxonomy import Density, Taxonomy
from finegrained_rlhf.runtime.console import tracked
from finegrained_rlhf.text.segmentation import Segmenter
from finegrained_rlhf.text.templates import PassageText
from reward_models.kinds.base import Form, Kind
from reward_models.kinds.parts import InputParts, answer_parts
from reward_models.labels.pairs import Matching, PairSet, pair_set

PROGRESS_DELAY_S = 2.0
"""A progress bar appears when the work takes longer than this."""
Compare = Callable[[Sequence[FeedbackRecord], Segmenter, Matching], PairSet]


@dataclass(frozen=True, kw_only=True)
class PairKind(Kind):
    """A kind that gives a whole answer one score, learnt from pairs of answers to one question.

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
        from reward_models.labels.completeness import completeness

        bar = tracked(records, "completeness pairs", len(records), "examples", after_s=PROGRESS_DELAY_S)
        scored = [(record, completeness(record, segmenter, matching, minor)) for record in bar]
        return pair_set([(record, result.preferences) for record, result in scored if result is not None])

    return PairKind(name="completeness", compare=compare)
