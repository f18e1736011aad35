"""Reciprocal rank fusion: passages that several rankings have near the top come first, whatever their scores mean."""

from __future__ import annotations

import math
from collections.abc import Sequence

from finegrained_rlhf.core.checks import is_number
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.retrieval.protocol import Hit
from finegrained_rlhf.retrieval.runs import Run, in_trec_order

RANK_CONSTANT = 60
"""Cormack et al.'s."""


def reciprocal_rank_fusion(
    runs: Sequence[Run],
    weights: Sequence[float] = (),
    rank_constant: float = RANK_CONSTANT,
    depth: int | None = None,
    k: int | None = None,
) -> dict[str, list[Hit]]:
    """Runs as one: score(d) = Σ_r w_r / (rank_constant + rank_r(d)), ranks from 1; a run without d adds nothing.

    Source: Cormack, Clarke and Büttcher (2009), Reciprocal Rank Fusion outperforms Condorcet and individual Rank
    Learning Methods, where every weight is 1 and the constant, there called k, is 60.

    Args:
        runs: at least one; the rank of a hit is its place in trec_eval's order. A turn may be absent from some.
        weights: of each run, 0 or more and not all 0; none are all 1.
        rank_constant: above −1; the larger, the less the first ranks stand out.
        depth: how many hits of a turn count in each run; None: all.
        k: how many hits a turn are kept; None: all.

    Returns:
        The hits of each turn of any run, in trec_eval's order; turns in the order in which the runs have them. The
        order of runs (with their weights) changes no score.

    Raises:
        ConfigError: no run, as many weights as there are no runs, or a number out of its range.
        DataError: a run has a passage twice for one turn, or a score that is not finite.
    """
    check_fusion(len(runs), weights, rank_constant, depth, k)
    weights = weights or [1.0] * len(runs)
    terms: dict[str, dict[str, list[float]]] = {}
    for run, weight in zip(runs, weights, strict=True):
        for turn, hits in run.items():
            of_turn = terms.setdefault(turn, {})
            for rank, hit in enumerate(_ranked(turn, hits)[:depth], 1):
                of_turn.setdefault(hit.id, []).append(weight / (rank_constant + rank))
    fused: dict[str, list[Hit]] = {}
    for turn, of_turn in terms.items():
        fused[turn] = in_trec_order([Hit(name, math.fsum(added)) for name, added in of_turn.items()])[:k]
    return fused


def check_fusion(
    runs: int, weights: Sequence[float], rank_constant: float, depth: int | None = None, k: int | None = None
) -> None:
    """Raise ConfigError where `reciprocal_rank_fusion` cannot take its arguments; `runs` says how many there are."""
    if runs < 1:
        raise ConfigError("fusion: expected at least one run")
    if weights and len(weights) != runs:
        raise ConfigError(f"weights: expected one a run ({runs}), got {len(weights)}")
    if weights and (not all(is_number(weight) and weight >= 0 for weight in weights) or not any(weights)):
        raise ConfigError(f"weights: expected numbers of 0 or more, not all 0, got {list(weights)}")
    if not is_number(rank_constant) or rank_constant <= -1:
        raise ConfigError(f"rank_constant: expected a number above -1, got {rank_constant!r}")
    for name, value in (("depth", depth), ("k", k)):
        if value is not None and value < 1:
            raise ConfigError(f"{name}: expected at least 1, got {value}")


def _ranked(turn: str, hits: Sequence[Hit]) -> list[Hit]:
    try:
        return in_trec_order(hits)
    except DataError as error:
        raise DataError(f"turn {turn}: {error.problem}", record=error.record, field=error.field) from None
