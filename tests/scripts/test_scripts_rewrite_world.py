"""The shortest run of the experiment on RewriteWorld, from the world to the scores of every system."""

from __future__ import annotations

from pathlib import Path

import pytest
from script_runs import run_script

from finegrained_rlhf.core.files import read_json, read_jsonl
from finegrained_rlhf.experiments.conqrr.rewrite_world import SYSTEMS


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
        "settings.conqrr_steps=2",
        "settings.first_train=8",
        "settings.first_t5qr_steps=3",
        "settings.first_conqrr_steps=2",
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
