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
        ridge: of the head that tells what is needed, on standardised features.
        vector_ridge: the same of the features that are the encoder's vectors.
        copied: whether it may speak against a segment that it is copied word for word. People's marks say so; but what
            no passage says is then the less irrelevant for it, so that foreign text and padding pay.
        planted: families of changes (`rewards/stress`) that are planted in the training answers, with what is known of
            them; none by default.
        changes: unmarked answers of each question that changes are planted in beside the gold one.
        planted_weight: what all planted items count in all, as a multiple of what people's do.
    """

    needed: Annotated[float, above(0), at_most(1)] = 0.4
    ridge: Annotated[float, above(0)] = 10.0
    vector_ridge: Annotated[float, above(0)] = 8000.0
    copied: bool = False
    planted: Sequence[str] = ()
    changes: Annotated[int, at_least(0)] = 1
    planted_weight: Annotated[float, at_least(0)] = 0.1
