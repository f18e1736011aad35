"""Gates: a component counts only in responses in which another one passes a threshold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.records import SegmentScores
from finegrained_rlhf.rewards.aggregation import ResponseValue, response_value


@dataclass(frozen=True)
class RewardGate(Settings):
    """When a component counts; always without `by`.

    Hierarchical rewards as in ALaRM (Lai et al., 2024, arXiv 2403.06754, section 3.1), where a component is added only
    if the holistic reward of the response passes a threshold. A closed gate takes the component out of the response
    as a whole, all of its segments: w · 1[v ≥ at_least], with v the other component's value of the response. What the
    scorer of the other gave decides (raw, an empty response as `empty` says), whatever its weight or its own gate.

    Attributes:
        by: the component that decides.
        at_least: the smallest value of a response at which the gate is open, in the unit of `by`; needed with it.
        of: `mean` or `sum` of the values of the response's segments; 0 where it has none.
    """

    by: str | None = None
    at_least: float | None = None
    of: ResponseValue = "mean"

    def __post_init__(self) -> None:
        if (self.by is None) != (self.at_least is None):
            raise ConfigError(f"reward.gates: by and at_least belong together, got {self.by!r} and {self.at_least!r}")

    @property
    def active(self) -> bool:
        """True when another component decides."""
        return self.by is not None

    def opens(self, scores: Mapping[str, SegmentScores]) -> tuple[bool, ...] | None:
        """Whether the gate is open in each of R responses, by the raw scores of all components; None without `by`."""
        if self.by is None or self.at_least is None:
            return None
        return tuple(response_value(row, self.of) >= self.at_least for row in scores[self.by].values)
