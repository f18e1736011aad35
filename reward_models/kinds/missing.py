"""Models of missing information: `completeness`, how much of what was asked does the answer give?

The model reads question, passages and the whole answer; it learns from pairs that are bootstrapped from the human
corrections (`labels/completeness.py`). Source: thesis ch. 6 and app. D.
"""

from __future__ import annotations

from collections.abc import Sequence

from finegrained_rlhf.feedback.records import FeedbackRecord
from finegrained_rlhf.feedback.taxonomy import Taxonomy
from finegrained_rlhf.runtime.console import tracked
from finegrained_rlhf.text.segmentation import Segmenter
from reward_models.kinds.pairwise import PairKind
from reward_models.labels.matching import Matching
from reward_models.labels.pairs import PairSet, pair_set

PROGRESS_DELAY_S = 2.0
"""A progress bar appears when the work takes longer than this."""


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
