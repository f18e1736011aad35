"""Reciprocal rank fusion of TREC runs: what `finegrained fuse-runs` runs.

Passages that several rankings have near the top come first, whatever their scores mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from finegrained_rlhf.core.checks import is_number
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import InputFile, OutputFile
from finegrained_rlhf.retrieval.protocol import Hit
from finegrained_rlhf.retrieval.runs import Run, in_trec_order, read_trec_run, write_trec_run

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


@dataclass(frozen=True)
class FuseRuns(Settings):
    """Two or more TREC runs as one, by reciprocal rank fusion.

    Attributes:
        inputs: files of the runs, such as `finegrained search` and `finegrained evaluate-rewrites` write.
        output: file of the fused run.
        weights: of each run, in the order of `inputs`; none are all 1.
        rank_constant: what is added to every rank (k in Cormack et al., 2009).
        depth: how many hits of a query count in each run; None: all.
        k: hits a query that are written.
        name: of the run.
    """

    inputs: Sequence[InputFile]
    output: OutputFile
    weights: Sequence[float] = ()
    rank_constant: float = RANK_CONSTANT
    depth: int | None = None
    k: int = 100
    name: str = "rrf"

    def __post_init__(self) -> None:
        if isinstance(self.inputs, str) or len(self.inputs) < 2:
            raise ConfigError("inputs: expected two runs or more, inputs=[ONE.trec,OTHER.trec]")
        check_fusion(len(self.inputs), self.weights, self.rank_constant, self.depth, self.k)

    def run(self) -> None:
        """Read, fuse, write; say which queries are not in every run.

        Raises:
            DataError: a broken run, or one without any line; nothing is written then.
        """
        runs = []
        for path in self.inputs:
            runs.append(read_trec_run(path))
            if not runs[-1]:
                raise DataError("holds no hit, expected a run", file=path)
        fused = reciprocal_rank_fusion(runs, self.weights, self.rank_constant, self.depth, self.k)
        write_trec_run(self.output, fused, self.name)
        print(f"{len(fused)} queries of {len(runs)} runs -> {self.output}")
        for path, run in zip(self.inputs, runs, strict=True):
            if absent := [turn for turn in fused if turn not in run]:
                print(f"  {path} has no hits for {len(absent)} of them, {absent[0]!r} among them")
