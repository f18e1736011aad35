"""Fusing TREC runs: the job behind `finegrained fuse-runs`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import InputFile, OutputFile
from finegrained_rlhf.retrieval.fusion.reciprocal_rank import RANK_CONSTANT, check_fusion, reciprocal_rank_fusion
from finegrained_rlhf.retrieval.runs import read_trec_run, write_trec_run


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
