"""The settings of a bottleneck's training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import above, at_least, at_most


@dataclass(frozen=True)
class BottleneckConfig(Settings):
    """A reward model whose answers earn what the question needs of its passages (`reward_models/bottleneck`).

    One model has all components: relevance, factuality, completeness and preference. The encoder stays as it is.

    Attributes:
        needed: a passage sentence counts as needed where a gold answer says at least this share of it.
        place: whether it may be read where a sentence stands, and how many others repeat it, to tell whether it is
            needed; inner folds decide whether it is.
        gold: whether preference learns that a gold answer is better than the answers to its question; nobody said so.
        planted: families of changes (`rewards/stress`) that are planted in the training answers, so that whole answers
            are learnt from more than people's comparisons; none by default.
        changes: unmarked answers of each question that changes are planted in beside the gold one.
    """

    needed: Annotated[float, above(0), at_most(1)] = 0.4
    place: bool = True
    gold: bool = False
    planted: Sequence[str] = ()
    changes: Annotated[int, at_least(0)] = 1
