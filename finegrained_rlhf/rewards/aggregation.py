"""How the values of a response's segments share the reward that one component can give it.

A sum over segments grows with their number, so a policy can earn more by writing more of them; a mean or a fixed budget
takes that way out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.records import SegmentScores

Aggregation = Literal["sum", "mean", "budget"]


def aggregate(values: Sequence[float], how: Aggregation, budget: float = 1.0) -> tuple[float, ...]:
    """What each of a response's n segments is worth.

    `sum`: v_i, so that the response gets Σ v_i (the paper); `mean`: v_i / n; `budget`: v_i · B / Σ_j |v_j|, so that the
    absolute values add up to B whatever the number of segments and the size of the values.

    Args:
        values: of the segments of one response, in the component's unit.
        how: one of the three.
        budget: B, in the component's unit.

    Returns:
        One number a segment; zeros where a budget is asked for and all values are 0.

    Raises:
        ConfigError: `how` is none of the three.
    """
    if how == "sum":
        return tuple(values)
    if how == "mean":
        return tuple(value / len(values) for value in values)
    if how == "budget":
        size = sum(abs(value) for value in values)
        return tuple(value * budget / size if size else 0.0 for value in values)
    raise ConfigError(f"aggregation must be one of {', '.join(get_args(Aggregation))}, got {how!r}")


def aggregated(
    name: str, scores: SegmentScores, values: Sequence[tuple[float, ...]], how: Aggregation, budget: float
) -> Sequence[tuple[float, ...]]:
    """The values of R responses' segments after aggregation; the same object for `sum`.

    Args:
        name: of the component.
        scores: what it says of the responses.
        values: the same after normalisation, or as they are.
        how: one of the three.
        budget: B, in the component's unit.

    Raises:
        ConfigError: a budget for a component that gives one value a response, of which only the sign would be left.
    """
    if how == "budget" and scores.whole_response:
        raise ConfigError(
            f"reward.settings.{name}.aggregation: a budget is for segments, and {name} scores whole responses"
        )
    return values if how == "sum" else [aggregate(row, how, budget) for row in values]


ResponseValue = Literal["mean", "sum"]


def response_value(values: Sequence[float], of: ResponseValue) -> float:
    """What a response counts with: the mean or the sum of the values of its segments, 0 without segments."""
    total = sum(values)
    return total / len(values) if of == "mean" and values else total
