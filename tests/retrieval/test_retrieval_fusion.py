"""Reciprocal rank fusion: numbers by hand, a naive loop over random runs, files, and what is refused."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.retrieval.fusion import FuseRuns, reciprocal_rank_fusion
from finegrained_rlhf.retrieval.protocol import Hit
from finegrained_rlhf.retrieval.runs import read_trec_run, write_trec_run

SPARSE = {"q": [Hit("a", 9.0), Hit("b", 8.0), Hit("c", 7.0)], "only": [Hit("x", 1.0)]}
DENSE = {"q": [Hit("b", 0.9), Hit("d", 0.8), Hit("a", 0.7)], "other": [Hit("y", 0.1)]}


def fused(*args: object, **kwargs: object) -> dict[str, list[tuple[str, float]]]:
    found = reciprocal_rank_fusion(*args, **kwargs)
    return {turn: [(hit.id, pytest.approx(hit.score, rel=1e-6)) for hit in hits] for turn, hits in found.items()}


def test_by_hand() -> None:
    """b: 1/62 + 1/61; a: 1/61 + 1/63; d: 1/62; c: 1/63."""
    assert fused([SPARSE, DENSE]) == {
        "q": [("b", 0.0325224749), ("a", 0.0322664585), ("d", 0.0161290323), ("c", 0.0158730159)],
        "only": [("x", 0.0163934426)],
        "other": [("y", 0.0163934426)],
    }


def test_weights_constant_and_depths_by_hand() -> None:
    """Weights 3 and 1, constant 0: a 3 + 1/3, b 3/2 + 1, c 3/3, d 1/2."""
    weighted = fused([SPARSE, DENSE], weights=[3, 1], rank_constant=0)["q"]
    assert weighted == [("a", 3 + 1 / 3), ("b", 2.5), ("c", 1.0), ("d", 0.5)]
    assert fused([SPARSE, DENSE], weights=[0, 1], rank_constant=1, k=1)["q"] == [("b", 1 / 2)]
    assert fused([SPARSE, DENSE], rank_constant=0, depth=1)["q"] == [("b", 1.0), ("a", 1.0)]  # ties: id, descending


def test_ranks_are_trec_evals_and_the_order_of_runs_changes_nothing() -> None:
    """Equal scores rank by id, descending, wherever they stand in the list; sums do not depend on the order."""
    tied = {"q": [Hit("a", 1.0), Hit("b", 1.0), Hit("c", 2.0)]}
    assert fused([tied], rank_constant=0)["q"] == [("c", 1.0), ("b", 1 / 2), ("a", 1 / 3)]
    runs = [SPARSE, DENSE, tied]
    weights = [0.1, 0.7, 0.2]
    one = reciprocal_rank_fusion(runs, weights)["q"]
    assert reciprocal_rank_fusion(runs[::-1], weights[::-1])["q"] == one


def test_against_a_naive_loop() -> None:
    rng = random.Random(0)
    names = [f"p{i}" for i in range(40)]
    runs = [{"q": [Hit(name, rng.random()) for name in rng.sample(names, 25)]} for _ in range(4)]
    found = {hit.id: hit.score for hit in reciprocal_rank_fusion(runs, [1, 2, 0.5, 1], 10, 20)["q"]}
    for name in names:
        expected = 0.0
        for run, weight in zip(runs, (1, 2, 0.5, 1), strict=True):
            scores = {hit.id: hit.score for hit in run["q"]}
            rank = 1 + sum(score > scores[name] for score in scores.values()) if name in scores else 99
            expected += weight / (10 + rank) if rank <= 20 else 0.0
        assert found.get(name, 0.0) == pytest.approx(expected, rel=1e-6)


def test_the_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(tmp_path / name) for name in ("sparse.trec", "dense.trec")]
    for path, run in zip(paths, (SPARSE, DENSE), strict=True):
        write_trec_run(path, run, "one")
    FuseRuns(paths, str(tmp_path / "fused.trec"), k=2, name="both").run()
    assert read_trec_run(tmp_path / "fused.trec") == reciprocal_rank_fusion([SPARSE, DENSE], k=2)
    assert (tmp_path / "fused.trec").read_text().splitlines()[0].split()[::5] == ["q", "both"]
    told = capsys.readouterr().out
    assert "3 queries of 2 runs" in told and "sparse.trec has no hits for 1 of them, 'other' among them" in told


def test_what_is_refused(tmp_path: Path) -> None:
    for given, problem in (
        ({"inputs": ["a"]}, "two runs or more"),
        ({"inputs": "ab"}, "two runs or more"),
        ({"weights": [1]}, r"one a run \(2\), got 1"),
        ({"weights": [1, -1]}, "0 or more"),
        ({"weights": [0, 0]}, "not all 0"),
        ({"rank_constant": -1}, "rank_constant: expected a number above -1"),
        ({"depth": 0}, "depth: expected at least 1"),
        ({"k": 0}, "k: expected at least 1"),
    ):
        with pytest.raises(ConfigError, match=problem):
            FuseRuns(**{"inputs": ["a", "b"], "output": "c", **given})
    with pytest.raises(ConfigError, match="at least one run"):
        reciprocal_rank_fusion([])
    with pytest.raises(DataError, match="record a: turn q: this passage is found twice"):
        reciprocal_rank_fusion([{"q": [Hit("a", 1.0), Hit("a", 2.0)]}])
    (tmp_path / "empty.trec").write_text("")
    write_trec_run(tmp_path / "full.trec", SPARSE, "x")
    with pytest.raises(DataError, match="empty.trec: holds no hit"):
        FuseRuns([str(tmp_path / "full.trec"), str(tmp_path / "empty.trec")], str(tmp_path / "out.trec")).run()
    assert not (tmp_path / "out.trec").exists()
