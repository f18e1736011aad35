"""Models that give a whole answer one score, learnt from pairs of answers to one question.

Here the holistic baseline, `preference`: which of two answers did people prefer, all errors weighed? The model reads
question, passages and the whole answer. Source: thesis ch. 6 and app. D.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from finegrained_rlhf.feedback.records import FeedbackRecord
from finegrained_rlhf.feedback.taxonomy import Density
from finegrained_rlhf.text.segmentation import Segmenter
from finegrained_rlhf.text.templates import PassageText
from reward_models.kinds.base import Form, Kind
from reward_models.kinds.parts import InputParts, answer_parts
from reward_models.labels.matching import Matching
from reward_models.labels.pairs import PairSet, pair_set

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
