"""`experiment=smoke` with weights that move, and reward models that read less than a response."""

from __future__ import annotations

from pathlib import Path

import pytest
from script_runs import run_script

from finegrained_rlhf.core.files import read_json, read_jsonl
from finegrained_rlhf.feedback.outputs import OutputRecord, write_outputs
from finegrained_rlhf.feedback.reading import read_examples

pytestmark = pytest.mark.scripts

MOVING = [
    "reward.schedule.factuality.steps=[1,3]",
    "reward.schedule.factuality.weights=[0.5,0.9]",
    "reward.gates.completeness.by=relevance",
    "reward.gates.completeness.at_least=-0.5",
    "reward.constraints.relevance.at_least=0.9",
    "reward.constraints.relevance.rate=0.5",
]

TOO_LONG = "even without their passages; they are scored without the end"


@pytest.mark.slow
def test_moving_weights_go_on_where_a_run_stopped(smoke_keys: list[str], tmp_path: Path) -> None:
    """Two steps, then a third by a second start; the dual variable goes on from the checkpoint."""
    told: list[str] = []
    short = [f"+reward.components.{name}.max_length=34" for name in ("relevance", "factuality", "completeness")]
    for steps in (2, 3):
        command = ["train_ppo", "experiment=smoke", f"output_dir={tmp_path}/run", f"total_steps={steps}", *smoke_keys]
        finished = run_script(*command, *MOVING, *short)
        assert finished.returncode == 0, finished.stderr
        told.append(finished.stderr)
    assert TOO_LONG in told[0]  # questions need up to 30 tokens of the 34; the answers don't end the run
    rows, multiplier = read_jsonl(tmp_path / "run" / "metrics.jsonl"), 0.0
    assert [row["reward/factuality/weight"] for row in rows] == pytest.approx([0.5, 0.7, 0.9])
    for row in rows:
        assert row["reward/relevance/weight"] == pytest.approx(0.3 + multiplier)
        assert row["constraint/relevance/multiplier"] == pytest.approx(multiplier)
        multiplier = max(0.0, multiplier + 0.5 * (0.9 - row["constraint/relevance/value"]))
        assert 0.0 <= row["reward/completeness/open"] <= 1.0 and row["reward/completeness/weight"] == 0.3
        weighted = sum(row[f"reward/{name}/weighted"] for name in ("relevance", "factuality", "completeness"))
        assert row["reward/total"] == pytest.approx(weighted, abs=1e-5)
    assert (
        "reward.constraints.relevance.at_least=0.9 was not reached" in told[1] and "missed in 3 of 3 steps" in told[1]
    )
    assert "no validation met all of reward.constraints: that of step" in told[1]
    for row in read_jsonl(tmp_path / "run" / "eval.jsonl"):  # one scale for the run: the configured weights
        assert row["constraint/relevance/value"] < 0.9 and row["constraints_missed"] == 1
        weighted = [0.3 * row["reward/relevance/raw"], 0.5 * row["reward/factuality/raw"]]
        assert row["score"] == pytest.approx(sum(weighted) + row["reward/completeness/weighted"], abs=1e-5)
    reweighed = run_script("reweigh", f"run={tmp_path}/run", f"output={tmp_path}/reweighed.json")
    assert reweighed.returncode == 0, reweighed.stderr
    found = read_json(tmp_path / "reweighed.json")
    assert found["moved"] and found["before"]["weights"]["factuality"] == pytest.approx(0.7)


def test_an_answer_that_reward_models_cannot_read_whole_is_measured_and_counted(
    smoke: Path, smoke_keys: list[str], tmp_path: Path
) -> None:
    data = smoke / "prepared" / "world" / "dev.json"
    long = [OutputRecord.of(example, ["a long answer, " * 300]) for example in read_examples(data)]
    write_outputs(tmp_path / "long.jsonl", long)
    measured = run_script(
        "evaluate",
        f"outputs={tmp_path}/long.jsonl",
        f"data={data}",
        f"output={tmp_path}/evaluation.json",
        "reward=fine_grained",
        *(key for key in smoke_keys if key.startswith("reward.")),
    )
    assert measured.returncode == 0, measured.stderr
    assert TOO_LONG in measured.stderr
    found = read_json(tmp_path / "evaluation.json")
    assert found["reward/relevance/segments"] > 0 and "reward/total" in found
