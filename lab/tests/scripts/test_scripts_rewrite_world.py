"""The shortest runs of the experiments on RewriteWorld, from the world to the scores of every system."""

from __future__ import annotations

from pathlib import Path

import pytest
from script_runs import run_script

from finegrained_lab.experiments.conqrr.rewrite_world import SYSTEMS
from finegrained_lab.experiments.conqrr.supervision import SupervisionTable
from finegrained_rlhf.core.files import read_json, read_jsonl


@pytest.mark.slow
@pytest.mark.scripts
def test_every_step_of_the_experiment(tmp_path: Path) -> None:
    done = run_script(
        "run_experiment",
        "pipeline=conqrr/rewrite_world",
        f"output_dir={tmp_path}",
        "seeds=null",
        "collect=null",
        "settings.train=8",
        "settings.dev=4",
        "settings.test=8",
        "settings.t5qr_steps=3",
        "settings.conqrr_steps=1",
        "settings.slow_steps=1",
        "settings.first_train=8",
        "settings.first_t5qr_steps=3",
        "settings.first_conqrr_steps=1",
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = read_json(tmp_path / "evaluation.json")
    assert set(found["systems"]) == set(SYSTEMS)
    assert found["systems"]["rewrite"]["overall"]["mrr"] == 1.0
    assert (
        read_json(tmp_path / "t5qr/metrics.json")["imitated"]
        < read_json(tmp_path / "t5qr_full/metrics.json")["imitated"]
    )
    rewards = {run: read_jsonl(tmp_path / run / "metrics.jsonl")[0] for run in ("conqrr_rl", "conqrr_mix")}
    assert "loss/ce" in rewards["conqrr_mix"] and "loss/ce" not in rewards["conqrr_rl"]


@pytest.mark.slow
@pytest.mark.scripts
def test_every_step_of_the_experiment_on_supervision(tmp_path: Path) -> None:
    few = (
        "train=40",
        "dev=6",
        "test=8",
        "more=60",
        "t5qr_steps=40",
        "conqrr_steps=2",
        "first_steps=3",
        "tuned_steps=2",
    )
    settings = [f"settings.{setting}" for setting in few]
    where = [f"output_dir={tmp_path}", "seeds=[3]", f"collect.output={tmp_path}/table.json"]
    done = run_script("run_experiment", "pipeline=conqrr/supervision", *where, *settings)
    assert done.returncode == 0, done.stderr[-3000:]
    result = read_json(tmp_path / "table.json")
    assert {row["system"] for row in result["rows"]} == set(SupervisionTable.systems)
    root = tmp_path / "seed_3"
    shares = {name: read_json(root / name / "metrics.json")["imitated"] for name in ("t5qr_1", "t5qr_10", "t5qr_100")}
    assert 0 < shares["t5qr_1"] < shares["t5qr_10"] < shares["t5qr_100"]
    asked = {kind: read_jsonl(root / f"dense/{kind}_train.jsonl") for kind in ("question", "context", "mix_10")}
    rewrites = {row["id"]: row["rewrite"] for row in read_jsonl(root / "rewrites/mix_10_train.jsonl")}
    assert all(row["query"] == rewrites[row["id"]] for row in asked["mix_10"])
    by_id = {row["id"]: row["query"] for row in asked["question"]}
    later = [row for row in asked["context"] if not row["id"].endswith("_1")]
    assert later and all(row["query"].startswith(by_id[row["id"]] + " ") for row in later)
