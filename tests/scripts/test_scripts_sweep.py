"""The shortest real sweep: points beside each other in processes of their own, a second start, a point that fails."""

from __future__ import annotations

from pathlib import Path

import pytest
from script_runs import ROOT, Done, run_process, run_script

from finegrained_rlhf.core.files import read_json, read_jsonl

pytestmark = pytest.mark.scripts


def sweep(*arguments: str, forked: bool = True) -> Done:
    """`forked=False` starts it as a user does; its points are started in the same way."""
    short = ("experiment=smoke", "total_steps=1", "validate_every=1", "processes.threads=1", "sweep.best_of=[2]")
    fixed = (*short, "sweep.evaluation.oracle=factworld", "sweep.parallel=2")
    if forked:
        return run_script("sweep", *fixed, *arguments, timeout=800)
    return run_process(str(ROOT / "scripts/sweep.py"), *fixed, *arguments, timeout=800)


@pytest.mark.slow
def test_a_failed_point_does_not_stop_the_other_and_finished_ones_are_skipped(
    smoke_keys: list[str], tmp_path: Path
) -> None:
    root, results = tmp_path / "sweep", tmp_path / "table.json"
    table = f"sweep.table.results={results}"
    first = sweep(*smoke_keys, f"output_dir={root}", table, "optimizer.lr=1e30,1e-3", forked=False)
    assert first.returncode == 1, first.stderr
    points, result = root / "points", read_json(root / "sweep.json")
    assert {path.name for path in points.iterdir()} == {"lr_1e+30", "lr_0.001"}
    systems = [(row["system"], row["swept"]) for row in result["rows"]]
    assert systems == [("PPO", {"optimizer.lr": "0.001"}), ("best of 2", {"optimizer.lr": "0.001"})]
    assert {"completeness", "rouge_lsum", "reward/relevance/error_free_share"} <= set(result["metrics"])
    (failed,) = result["failed"]
    assert (failed["name"], failed["stage"]) == ("lr_1e+30", "training") and "error: " in failed["error"]
    assert f"failed: lr_1e+30, training: {failed['error']}" in first.stderr and not results.exists()
    for name in ("sweep.md", "pareto.svg", "report.html"):
        assert (root / name).stat().st_size > 500
    assert "-m accelerate.commands.launch" in (points / "lr_0.001/log.txt").read_text(encoding="utf-8")
    assert [row["step"] for row in read_jsonl(points / "lr_0.001/metrics.jsonl")] == [1]

    trained = (points / "lr_0.001/metrics.jsonl").stat().st_mtime_ns
    again = sweep(*smoke_keys, f"output_dir={root}", table, "optimizer.lr=choice(1e-3)", forked=False)
    assert again.returncode == 0, again.stderr
    assert again.stdout.startswith("lr_0.001: is done\n")
    assert (points / "lr_0.001/metrics.jsonl").stat().st_mtime_ns == trained
    result = read_json(root / "sweep.json")
    assert [row["system"] for row in result["rows"]] == ["PPO", "best of 2"] and result["failed"] == []
    assert read_json(results) == result and results.with_suffix(".md").is_file()


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    for arguments, told in (
        (["reward.weights.relevanc=0.1,0.2"], "unknown key 'reward.weights.relevanc'"),
        (["sweep.table.pareto.x_better=up", "seed=0,1"], "pareto.x_better: expected one of higher, lower"),
    ):
        done = sweep(f"output_dir={tmp_path / 'none'}", *arguments)
        assert done.returncode != 0 and done.stderr.count("\n") == 1 and told in done.stderr, done.stderr
        assert not (tmp_path / "none/points").exists()


def test_a_sweep_is_not_made_in_the_directory_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    (tmp_path / "report.html").write_text("of the run")
    done = run_script("sweep", "experiment=smoke", f"output_dir={tmp_path}")
    assert done.returncode != 0 and "is the directory of a training run; name another for the sweep" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "report.html"]
