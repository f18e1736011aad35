"""R1, relevance: has this sub-sentence an error of category C1 (irrelevant, redundant, incoherent)?

The model reads the question and the sub-sentences, no passages. Source: thesis ch. 6 and app. D.
"""

from __future__ import annotations

from finegrained_rlhf.feedback.records import C1_TYPES
from reward_models.kinds.base import Recipe, SegmentKind

RELEVANCE = SegmentKind(
    name="relevance",
    density="sub_sentence",
    reads_passages=False,
    errors=C1_TYPES,
    recipe=Recipe(lr=5.0e-6, weight_decay=0.01, batch_size=24, epochs=50),
)
