"""Best of n and reweighing as a user runs them: a run's reward is found, and changed on the command line."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from script_runs import run_script

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, read_jsonl
from finegrained_rlhf.launch.rewards import opened, with_reward_of_run  # noqa: E402

REWARD = {
    "_target_": "finegrained_rlhf.rewards.RewardConfig",
    "components": {
        "relevance": {"_target_": "reward_models.SegmentScorer", "path": "old"},
        "length": {"_target_": "finegrained_rlhf.rewards.WholeTextScorer"},
    },
    "weights": {"relevance": 0.3, "length": 1.0},
    "settings": {"length": {"_target_": "finegrained_rlhf.rewards.ComponentConfig", "aggregation": "mean"}},
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run" / "checkpoints" / "step_5" / "policy").mkdir(parents=True)
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump({"seed": 0, "reward": REWARD}))
    (tmp_path / "run" / "run.json").write_text("{}")
    return tmp_path / "run"


def filled(checkpoint: Path | None, best_of: int = 4, **given: Any) -> Any:
    made = with_reward_of_run(
        {"checkpoint": checkpoint and str(checkpoint), "best_of": best_of, "reward": None, **given}
    )
    return made["reward"]


def test_only_keys_of_a_reward_are_opened() -> None:
    given = ["checkpoint=a", "reward=factworld", "reward.weights.x=1", "+reward.weights.y=2", "rewards.z=3", "--help"]
    assert opened(given) == [*given[:2], "++reward.weights.x=1", *given[3:]]


@pytest.mark.parametrize("inside", ["", "checkpoints/step_5", "checkpoints/step_5/policy"])
def test_the_reward_is_that_of_the_run_which_the_checkpoint_lies_in(run: Path, inside: str) -> None:
    assert filled(run / inside) == REWARD


def test_what_is_given_replaces_what_the_run_had(run: Path) -> None:
    changes = {
        "weights": {"relevance": 0.8},
        "settings": {"relevance": {"aggregation": "budget"}, "length": {"budget": 2.0}},
        "components": {"relevance": {"path": "new"}},
    }
    made = filled(run, reward=changes)
    assert made["weights"] == {"relevance": 0.8, "length": 1.0}
    target = "finegrained_rlhf.rewards.ComponentConfig"
    assert made["settings"] == {
        "length": {"_target_": target, "aggregation": "mean", "budget": 2.0},
        "relevance": {"_target_": target, "aggregation": "budget"},
    }
    assert made["components"] == {
        **REWARD["components"],
        "relevance": {**REWARD["components"]["relevance"], "path": "new"},
    }
    assert yaml.safe_load((run / "config.yaml").read_text())["reward"] == REWARD


def test_nothing_is_taken_where_nothing_is_chosen_or_a_reward_is_named(run: Path, tmp_path: Path) -> None:
    assert filled(run, best_of=1) is None
    assert filled(run, best_of=1, reward={"weights": {"relevance": 2.0}})["weights"]["relevance"] == 2.0
    named = {"_target_": "x", "weights": {}}
    assert filled(run, reward=named) == named
    assert filled(None) is None
    assert filled(tmp_path / "elsewhere") is None
    (run / "config.yaml").write_text("seed: 0\n")
    assert filled(run) is None
    assert with_reward_of_run({"checkpoint": str(run), "reward": None}) == {"checkpoint": str(run), "reward": None}
    (run / "config.yaml").write_text("[")
    with pytest.raises(DataError, match="not valid YAML"):
        filled(run)


def script(name: str, arguments: Sequence[str], fails: bool = False) -> str:
    done = run_script(name, *arguments)
    assert done.returncode == (2 if fails else 0), done.stderr
    return done.stderr.strip() if fails else done.stdout


@pytest.mark.scripts
def test_a_run_is_asked_what_if(smoke: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(smoke, run)
    data = f"{run}/prepared/world/dev.json"

    told, written = tmp_path / "what_if.json", tmp_path / "best.jsonl"
    printed = script("reweigh", [f"run={run}", "reward.weights.relevance=5", f"output={told}"])
    assert "| relevance    | 0.300  | 5.000 |" in printed and read_json(told)["now"]["weights"]["relevance"] == 5
    error = script("reweigh", [f"run={run}", "reward.weights.relevanse=5"], fails=True)
    assert error == (
        "error: reward.weights.relevanse: no such component; the run's reward has completeness, factuality, relevance"
    )

    ask = [f"checkpoint={run}", f"input={data}", f"output={written}", "best_of=3", "max_new_tokens=12"]
    script("generate", [*ask, "reward.weights.relevance=5", "reward.settings.relevance.aggregation=mean"])
    rows = read_jsonl(written)
    assert len(rows) == 5 and all(len(row["totals"]) == 3 for row in rows)
    for row in rows:
        pieces = [segment for segment in row["segments"] if segment["component"] == "relevance"]
        assert all(p["weighted"] == pytest.approx(5 * p["raw"] / len(pieces), abs=1e-5) for p in pieces)

    output = tmp_path / "evaluation.json"
    script("evaluate", [f"checkpoint={run}", f"data={data}", f"output={output}", "best_of=3", "max_new_tokens=12"])
    report = read_json(output)
    assert report["best_of"] == 3 and report["top_k"] == 20 and "reward/total" in report
