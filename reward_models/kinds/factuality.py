"""R2, factuality: has this sentence an error of category C2 (wrong by the passages, or not to be found in them)?

The model reads question, passages and sentences. Annotators were told not to look for C2 errors inside C1 errors, so
that a sentence with C1 errors alone says nothing about its facts: it gets no label. Source: thesis ch. 6 and app. D.
"""

from __future__ import annotations

from finegrained_rlhf.feedback.records import C1_TYPES, C2_TYPES
from reward_models.kinds.base import Recipe, SegmentKind

FACTUALITY = SegmentKind(
    name="factuality",
    density="sentence",
    reads_passages=True,
    errors=C2_TYPES,
    unlabelled=C1_TYPES,
    recipe=Recipe(lr=5.0e-6, weight_decay=0.001, batch_size=24, epochs=50),
)
