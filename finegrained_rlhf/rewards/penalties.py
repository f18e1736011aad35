"""Penalties for the form of a response: one that does not end by itself, and one that is too long.

Knows tokens, not words: no scorer can see these, because a cut response is a text like any other. Each penalty is a
component of its own, so that its share of the reward stays visible: its value is what is counted, its weight
the penalty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from finegrained_rlhf.core.checks import is_number
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import at_least
from finegrained_rlhf.core.records import Rollout, SegmentScores

UNFINISHED = "unfinished"
"""The component that counts responses without an end of sequence: 1 for such a response, else 0."""
OVERLONG = "overlong"
"""The component that counts tokens behind the limit of `OverlongPenalty`."""
PENALTIES = (UNFINISHED, OVERLONG)


@dataclass(frozen=True)
class OverlongPenalty(Settings):
    """What a long response costs: −per_token · max(0, |y| − limit), on its last token.

    The linear penalty of DAPO (Yu et al., 2025, section 3.4) without its upper bound, which is
    `per_token` · (`rollout.max_new_tokens` − `limit`) here.

    Attributes:
        limit: longest response without a penalty in tokens, end of sequence included; None takes nothing.
        per_token: reward taken for each token behind it; above 0 with a limit, 0 without.
    """

    limit: Annotated[int | None, at_least(1)] = None
    per_token: float = 0.0

    def __post_init__(self) -> None:
        if self.limit is None and self.per_token != 0:
            raise ConfigError(f"reward.overlong.per_token={self.per_token!r} needs reward.overlong.limit")
        if self.limit is not None and self.per_token <= 0:
            raise ConfigError(f"reward.overlong.per_token: expected a positive number, got {self.per_token!r}")


@dataclass(frozen=True)
class FormPenalties:
    """The penalties of a reward.

    Attributes:
        end: reward taken from a response without an end of sequence; 0 takes none.
        overlong: what tokens behind a limit cost.
    """

    end: float = 0.0
    overlong: OverlongPenalty = OverlongPenalty()

    def __post_init__(self) -> None:
        if not is_number(self.end) or self.end < 0:
            raise ConfigError(f"reward.end_penalty: expected 0 or a positive number, got {self.end!r}")

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each penalty that is on, by the name of its component; all are negative."""
        weights = {UNFINISHED: -float(self.end)} if self.end else {}
        return weights if self.overlong.limit is None else {**weights, OVERLONG: -float(self.overlong.per_token)}

    def count(self, ended: Sequence[bool], lengths: Sequence[int], texts: Sequence[str]) -> dict[str, SegmentScores]:
        """What the penalties that are on count in R responses, one value a response.

        Args:
            ended: R flags, whether a response has an end of sequence.
            lengths: R lengths in tokens, end of sequence included.
            texts: R responses.
        """
        limit = self.overlong.limit or 0
        counted = {
            UNFINISHED: [0.0 if flag else 1.0 for flag in ended],
            OVERLONG: [float(max(0, length - limit)) for length in lengths],
        }
        spans = tuple(((0, len(text)),) for text in texts)
        return {name: SegmentScores(spans, tuple((value,) for value in counted[name]), True) for name in self.weights}

    def count_in(self, rollout: Rollout, eos_ids: Sequence[int]) -> dict[str, SegmentScores]:
        """The same of the R responses [R, T] of a rollout, whose policy has these ends of sequence.

        Raises:
            ConfigError: `end` is on and no end of sequence is given.
        """
        if self.end and not eos_ids:
            raise ConfigError("reward.end_penalty: the ends of sequence of the policy are not known here")
        if not self.weights:
            return {}
        return self.count(rollout.ended(eos_ids).tolist(), rollout.written.sum(dim=1).tolist(), rollout.texts)
