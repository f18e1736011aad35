"""Runs that version 0.2 made (commit e1625931) still open: they are listed, reported, evaluated, and go on to the bit.

tests/data/runs_0.2.tar.xz holds two steps of each of the eight trainers, with weights of width 8, and what they read
(`runs/made`); their configurations name paths below `runs/` and classes by the names that they had then.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from script_runs import ROOT, rows, run_script

import finegrained_rlhf
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.fields import named_class
from finegrained_rlhf.core.files import read_json, read_jsonl
from finegrained_rlhf.core.records import Sample
from finegrained_rlhf.launch.checks.schema import keys_of_job, problems
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.directory.run_records import changes_of_run

MADE = "runs/made"
REWARDS = ("relevance", "factuality", "completeness")
SHORT = ("keep_checkpoints=1", "validate_every=2", "checkpoint_every=1", "processes.precision=fp32")
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "ppo": (
        "train_ppo",
        "experiment=smoke",
        "prepare=null",
        f"data={MADE}/world/train.json",
        f"validation_data={MADE}/world/dev.json",
        f"policy.path={MADE}/models/t5",
        f"value.path={MADE}/models/t5",
        *(f"reward.components.{name}.path={MADE}/reward_models/{name}" for name in REWARDS),
        "keep_checkpoints=1",
    ),
    "sft": (
        "train_sft",
        f"data={MADE}/world/sft_train.json",
        f"validation_data={MADE}/world/dev.json",
        f"policy.path={MADE}/models/t5",
        "max_prompt_tokens=256",
        "max_answer_tokens=24",
        *SHORT,
    ),
    "reward_model": (
        "train_reward_model",
        "experiment=factworld/reward_model",
        "reward_model=relevance",
        f"data={MADE}/feedback.json",
        f"model={MADE}/models/longformer",
        "held_out=0.25",
        *SHORT,
    ),
    "classifier": (
        "train_classifier",
        f"data={MADE}/tone/labelled_train.jsonl",
        f"validation_data={MADE}/tone/labelled_dev.jsonl",
        f"model={MADE}/tone_models/bert",
        "max_length=96",
        "batches.batch_size=5",
        "batches.micro_batch_size=2",
        *SHORT,
    ),
    "gedi": (
        "train_gedi",
        f"data={MADE}/tone/labelled_train.jsonl",
        f"validation_data={MADE}/tone/labelled_dev.jsonl",
        f"policy.path={MADE}/tone_models/gpt2",
        "codes={mild:quiet,toxic:rude}",
        "batch_size=5",
        "max_tokens=48",
        *SHORT,
    ),
    "dialki": (
        "train_dialki",
        "experiment=dialki/dialogue_world",
        f"data={MADE}/dialogue/train.jsonl",
        f"validation_data={MADE}/dialogue/dev.jsonl",
        f"model={MADE}/dialogue_models/bert",
        *SHORT,
    ),
    "conqrr": (
        "train_conqrr",
        "experiment=conqrr/rewrite_world_t5qr",
        f"data={MADE}/rewrite/train.jsonl",
        f"validation_data={MADE}/rewrite/dev.jsonl",
        f"policy.path={MADE}/rewrite_models/t5",
        *SHORT,
    ),
    "dpr": (
        "train_dpr",
        "experiment=inscit/world_dpr",
        f"data={MADE}/dpr_train.jsonl",
        f"validation_data={MADE}/dpr_dev.jsonl",
        f"query_model={MADE}/inscit_models/bert",
        f"passage_model={MADE}/inscit_models/bert",
        "max_query_tokens=48",
        "max_passage_tokens=96",
        *SHORT,
    ),
}
"""What made each run, beside `output_dir` and `total_steps`."""
THEN: Mapping[str, Mapping[str, float]] = {
    "ppo": {
        "kl": -0.01407197117805481,
        "loss/policy": -0.0022684768006041808,
        "loss/value": 3.7773991259899766,
        "gradient_norm": 1.3974680304527283,
        "reward/total": 0.3874804973602295,
    },
    "sft": {"loss": 5.524240493774414, "gradient_norm": 1.0857855081558228},
    "reward_model": {"loss": 0.6480049610137939, "gradient_norm": 0.8368424773216248},
    "classifier": {"loss": 0.6806857466697693, "gradient_norm": 0.7425605058670044},
    "gedi": {"loss": 3.974143788814545, "gradient_norm": 0.5334437489509583},
    "dialki": {"loss": 8.064681053161621, "gradient_norm": 1.4421120882034302},
    "conqrr": {"loss": 5.542416572570801, "gradient_norm": 1.579628825187683},
    "dpr": {"loss": 3.7333122715353966, "gradient_norm": 0.013515962287783623},
}
"""What the code of version 0.2 wrote of step 3 when it resumed these runs."""


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory that `runs/` lies in; it is the working directory."""
    with tarfile.open(ROOT / "tests/data/runs_0.2.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    yield tmp_path


def succeeds(old: Path, name: str, *arguments: str) -> str:
    """What a command prints, on both streams."""
    done = run_script(name, *arguments, cwd=old)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def goes_on(old: Path, run: str) -> None:
    """The same command with one step more gives what it gave then."""
    command, *arguments = COMMANDS[run]
    printed = succeeds(old, command, *arguments, f"output_dir=runs/{run}", "total_steps=3")
    assert f"resuming from runs/{run}/checkpoints/step_2" in printed
    made = rows(old / f"runs/{run}/metrics.jsonl")
    assert [row["step"] for row in made] == [1, 2, 3]
    assert {key: made[-1][key] for key in THEN[run]} == pytest.approx(THEN[run], rel=1e-5, abs=1e-6)


def targets(config: Any) -> set[str]:
    """Every `_target_` of a configuration."""
    if isinstance(config, dict):
        own = {config["_target_"]} if "_target_" in config else set()
        return own.union(*(targets(value) for value in config.values()))
    return set().union(*(targets(item) for item in config)) if isinstance(config, list) else set()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_configuration_of_then_is_one_of_today(old: Path, name: str) -> None:
    """Its classes are there, nothing is wrong with it, and the same settings are no change."""
    run = RunDirectory(f"runs/{name}")
    config = run.read_config()
    assert all(named_class(target) for target in targets(config))
    assert list(problems(keys_of_job(config))) == []
    assert changes_of_run(run, config) == []
    (change,) = changes_of_run(run, {**config, "seed": 1, "total_steps": 9, "keep_checkpoints": 4})
    assert str(change) == "seed: 0 -> 1"


def split_moments(run: RunDirectory) -> None:
    """Let its configuration say `processes.sharding=optimizer`, which version 0.2 had."""
    text = run.config_path.read_text(encoding="utf-8")
    assert "sharding: none" in text
    run.config_path.write_text(text.replace("sharding: none", "sharding: optimizer"), encoding="utf-8")


def test_a_run_that_split_its_moments_alone_is_one_of_today(old: Path) -> None:
    run = RunDirectory("runs/dpr")
    split_moments(run)
    config = run.read_config()
    assert config["processes"]["sharding"] == "gradients"
    assert list(problems(keys_of_job(config))) == []
    for other in ("none", "full"):
        assert changes_of_run(run, {**config, "processes": {**config["processes"], "sharding": other}}) == []
    done = run_script("train_dpr", *COMMANDS["dpr"][1:], "output_dir=runs/dpr", "processes.sharding=optimizer", cwd=old)
    line = (
        "processes.sharding: expected one of none, gradients, full, got 'optimizer'; give gradients, which shares out"
    )
    assert done.returncode == 2 and line in done.stderr


def test_a_run_of_version_0_1_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"_target_": "finegrained_rlhf.training.ppo_job.PPOJob"}))
    with pytest.raises(DataError, match=r"config\.yaml: a run of version 0\.1, which is not read any more") as refused:
        RunDirectory(tmp_path).read_config()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("place", ["ppo", "ppo/checkpoints/step_2", "sft/policy"])
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
    printed = succeeds(old, "runs", "directory=runs", "format=json")
    listed = {row["run"]: row for row in map(json.loads, printed.splitlines())}
    assert {(row["run"], row["status"], row["step"]) for row in listed.values()} == {
        (f"runs/{name}", "finished", 2) for name in COMMANDS
    }
    succeeds(old, "report", f"run=[{','.join(f'runs/{name}' for name in COMMANDS)}]", "output=all.html")
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


@pytest.mark.slow
@pytest.mark.scripts
def test_what_other_trainers_made_is_evaluated(old: Path) -> None:
    feedback = f"data={MADE}/feedback.json"
    succeeds(old, "evaluate_reward_model", "path=runs/reward_model", feedback, "output=trust.json")
    dialogues = f"data={MADE}/dialogue/dev.jsonl"
    succeeds(old, "evaluate_dialki", "checkpoint=runs/dialki", dialogues, "output_dir=dialki", "plots=false")
    questions = f"input={MADE}/rewrite/dev.jsonl"
    succeeds(old, "rewrite", "checkpoint=runs/conqrr", questions, "output=rewrites.jsonl")
    assert len(read_jsonl(old / "rewrites.jsonl")) == len(read_jsonl(old / MADE / "rewrite/dev.jsonl"))


@pytest.mark.scripts
def test_ppo_goes_on_as_version_0_2_would_have(old: Path) -> None:
    split_moments(RunDirectory("runs/ppo"))
    goes_on(old, "ppo")


@pytest.mark.slow
@pytest.mark.scripts
@pytest.mark.parametrize("run", [name for name in COMMANDS if name != "ppo"])
def test_every_other_trainer_goes_on_as_version_0_2_would_have(old: Path, run: str) -> None:
    goes_on(old, run)
