"""R3, completeness: how much of what was asked does the answer give?

The model reads question, passages and the whole answer; it learns from pairs that are bootstrapped from the human
corrections (`labels/completeness.py`). Source: thesis ch. 6 and app. D.
"""

from __future__ import annotations

from collections.abc import Sequence

from tqdm import tqdm

from finegrained_rlhf.feedback.records import FeedbackRecord
from finegrained_rlhf.text.segmentation import Segmenter
from reward_models.kinds.base import PairKind, Recipe
from reward_models.labels.completeness import Matching, completeness
from reward_models.labels.pairs import PairSet, pair_set

PROGRESS_DELAY_S = 2.0
"""A progress bar appears when the work takes longer than this."""


def _by_completeness(records: Sequence[FeedbackRecord], segmenter: Segmenter, matching: Matching) -> PairSet:
    """Pairs from the completeness scores; records whose set S is empty are skipped."""
    bar = tqdm(records, desc="completeness pairs", unit="example", delay=PROGRESS_DELAY_S, leave=False)
    scored = [(record, completeness(record, segmenter, matching)) for record in bar]
    return pair_set([(record, result.preferences) for record, result in scored if result is not None])


COMPLETENESS = PairKind(
    name="completeness",
    compare=_by_completeness,
    recipe=Recipe(lr=5.0e-5, weight_decay=0.001, batch_size=12, steps=6000, global_attention="first"),
)
