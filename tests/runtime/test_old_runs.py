"""Runs that version 0.1 made (commit 9abf810) still open: for inference, reports, reweighing, evaluation and resume.

tests/data/runs_0.1.zip holds `ppo` (two steps of `experiment=smoke`), `sft` (two steps) and what they read; their
configurations name paths below `runs/` and classes by the modules that they had then.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from script_runs import ROOT, rows, run_script

import finegrained_rlhf
from finegrained_rlhf.core.files import read_json, read_jsonl
from finegrained_rlhf.core.records import Sample
from finegrained_rlhf.runtime.moved import MOVED

MADE = "runs/prepared"
REWARDS = ("relevance", "factuality", "completeness")
PPO = (
    "experiment=smoke",
    "prepare=null",
    "output_dir=runs/ppo",
    f"data={MADE}/world/train.json",
    f"validation_data={MADE}/world/dev.json",
    f"policy.path={MADE}/models/t5",
    f"value.path={MADE}/models/t5",
    *(f"reward.components.{name}.path={MADE}/reward_models/{name}" for name in REWARDS),
    "keep_checkpoints=1",
)
"""What made `runs/ppo`, beside `total_steps`."""
AS_IT_WAS = tuple(f"reward.settings.{name}.empty=0.0" for name in REWARDS)
"""What version 0.1 paid an answer without a word; it had no key for it."""
SFT = (
    "output_dir=runs/sft",
    f"data={MADE}/world/sft_train.json",
    f"validation_data={MADE}/world/dev.json",
    f"policy.path={MADE}/models/t5",
    "max_prompt_tokens=256",
    "validate_every=1",
    "checkpoint_every=1",
    "processes.precision=fp32",
)
"""What made `runs/sft`, beside `total_steps`."""


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory that `runs/` lies in; it is the working directory."""
    with zipfile.ZipFile(ROOT / "tests/data/runs_0.1.zip") as archive:
        archive.extractall(tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    yield tmp_path


def succeeds(old: Path, name: str, *arguments: str) -> str:
    """What a script prints, on both streams."""
    done = run_script(name, *arguments, cwd=old)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def targets(config: Any) -> set[str]:
    """Every `_target_` of a configuration."""
    if isinstance(config, dict):
        own = {config["_target_"]} if "_target_" in config else set()
        return own.union(*(targets(value) for value in config.values()))
    return set().union(*(targets(item) for item in config)) if isinstance(config, list) else set()


def test_the_archive_is_of_version_0_1(old: Path) -> None:
    named = targets(yaml.safe_load((old / "runs/ppo/config.yaml").read_text()))
    assert {"finegrained_rlhf.training.ppo_job.PPOJob", "reward_models.scorers.SegmentScorer"} <= named
    assert named - set(MOVED) == {
        "finegrained_rlhf.rewards.RewardConfig",
        "finegrained_rlhf.rewards.ComponentConfig",
        "finegrained_rlhf.rollout.RolloutConfig",
    }  # doors already then
    assert not (old / "runs/ppo/provenance.json").exists()


@pytest.mark.parametrize("place", ["ppo", "ppo/checkpoints/step_2", "ppo/policy", "sft"])
def test_its_policies_answer(old: Path, place: str) -> None:
    policy = finegrained_rlhf.load_policy(f"runs/{place}")
    prompt = read_json(old / MADE / "world/dev.json")[0]["text"]
    answers = policy.generate([prompt, prompt + " "], Sample(n=2, temperature=1.0), max_new_tokens=8)
    assert [len(group) for group in answers] == [2, 2]


def test_the_greedy_answers_are_those_of_then(old: Path) -> None:
    kept = [row for row in read_jsonl(old / "runs/ppo/samples/validation_step_2.jsonl") if "prompt" in row]
    assert len(kept) == 3
    policy = finegrained_rlhf.load_policy("runs/ppo/checkpoints/step_2")
    answers = policy.generate([row["prompt"] for row in kept], max_new_tokens=24, max_prompt_tokens=256)
    assert [group[0] for group in answers] == [row["response"] for row in kept]


@pytest.mark.scripts
def test_its_runs_are_listed_reported_and_reweighed(old: Path) -> None:
    listed = {
        row["run"]: row for row in map(json.loads, succeeds(old, "runs", "directory=runs", "format=json").splitlines())
    }
    assert {(name, row["status"], row["step"]) for name, row in listed.items()} == {
        ("runs/ppo", "finished", 2),
        ("runs/sft", "finished", 2),
    }
    succeeds(old, "report", "run=runs/ppo")
    page = (old / "runs/ppo/report.html").read_text(encoding="utf-8")
    assert "relevance" in page and "initial policy" in page
    printed = succeeds(old, "reweigh", "run=runs/ppo", "reward.weights.relevance=0.8", "output=reweighed.json")
    assert "best now" in printed
    assert read_json(old / "reweighed.json")["steps"]


@pytest.mark.scripts
def test_it_is_evaluated_by_the_reward_of_its_own_configuration(old: Path) -> None:
    data = f"data={MADE}/world/dev.json"
    succeeds(old, "evaluate", "checkpoint=runs/ppo", data, "output=best.json", "best_of=2", "max_new_tokens=24")
    assert {f"reward/{name}/raw" for name in REWARDS} <= read_json(old / "best.json").keys()
    succeeds(old, "generate", "checkpoint=runs/sft", f"input={MADE}/world/dev.json", "output=answers.jsonl")
    assert len(read_jsonl(old / "answers.jsonl")) == 3


@pytest.mark.scripts
def test_ppo_goes_on_as_version_0_1_would_have(old: Path) -> None:
    before = (old / "runs/ppo/metrics.jsonl").read_bytes()
    refused = run_script("train_ppo", *PPO, "total_steps=3", cwd=old)
    assert refused.returncode == 2
    assert len(refused.stderr.strip().splitlines()) == 1
    for name in REWARDS:
        assert f"reward.settings.{name}.empty: 0.0 -> -1.0" in refused.stderr
    assert (old / "runs/ppo/metrics.jsonl").read_bytes() == before

    succeeds(old, "train_ppo", *PPO, *AS_IT_WAS, "total_steps=3")
    last = rows(old / "runs/ppo/metrics.jsonl")[-1]
    then = {  # what the code of version 0.1 wrote when it resumed this run
        "step": 3,
        "kl": -0.10575014352798462,
        "loss/policy": -0.006481107076009115,
        "loss/value": 3.1808637676817,
        "gradient_norm": 1.9415579438209534,
        "reward/relevance/raw": 1.25,
        "reward/factuality/raw": 0.75,
        "reward/total": 0.7493916749954224,
        "response_length": 20.625,
        "alignment": 1.0,
    }
    assert {key: last[key] for key in then} == pytest.approx(then, rel=1e-5)
    assert [row["step"] for row in rows(old / "runs/ppo/metrics.jsonl")] == [1, 2, 3]


@pytest.mark.scripts
def test_fine_tuning_goes_on_as_version_0_1_would_have(old: Path) -> None:
    printed = succeeds(old, "train_sft", *SFT, "total_steps=3", "segmenter=rules")  # the default of version 0.1
    assert "resuming from runs/sft/checkpoints/step_2" in printed
    last = rows(old / "runs/sft/metrics.jsonl")[-1]
    then = {"step": 3, "examples": 12, "loss": 5.860855579376221, "tokens": 75, "gradient_norm": 1.9400334358215332}
    assert {key: last[key] for key in then} == pytest.approx(then, rel=1e-5)
