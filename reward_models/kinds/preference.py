"""The holistic baseline: which of two answers did people prefer, all errors weighed?

The model reads question, passages and the whole answer. Source: thesis ch. 6 and app. D.
"""

from __future__ import annotations

from collections.abc import Sequence

from finegrained_rlhf.feedback.records import FeedbackRecord
from finegrained_rlhf.text.segmentation import Segmenter
from reward_models.kinds.base import PairKind, Recipe
from reward_models.labels.completeness import Matching
from reward_models.labels.pairs import PairSet, pair_set


def _by_preference(records: Sequence[FeedbackRecord], segmenter: Segmenter, matching: Matching) -> PairSet:
    """Pairs from the human preferences; the answers are neither cut nor matched."""
    return pair_set([(record, record.preferences) for record in records])


PREFERENCE = PairKind(
    name="preference",
    compare=_by_preference,
    recipe=Recipe(lr=1.0e-5, weight_decay=0.01, batch_size=12, steps=6000, global_attention="first"),
)
