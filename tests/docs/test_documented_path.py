"""The commands of docs/getting_started.md, followed literally: bash expands the page's one block of commands.

What they make is checked in every run of the tests, on a small world; what they reach, there and as they stand, on an
unseen seed, in `make test-all`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from script_runs import run_script

from finegrained_rlhf.core.files import read_json, read_jsonl, write_json

ROOT = Path(__file__).parents[2]
WORK = Path("outputs/factworld")

SMALL = {
    "make-factworld": ["train=48", "dev=16", "test=24", "sft_train=600", "sft_dev=16", "world.max_asked=3"],
    "make-tiny-models": ["t5.structured=true"],
    "train-sft": ["validation_prompts=16"],
    "train-reward-model": ["total_steps=10", "validate_every=10", "reward_model.batches.batch_size=16"],
    "train-ppo": [
        "total_steps=2",
        "validate_every=1",
        "validation_prompts=4",
        "rollout.prompts_per_step=4",
        "optimizer.warmup_steps=0",
    ],
}
"""What is appended to each command, so that the path takes half a minute; nothing but sizes."""


def path_block() -> str:
    """The page's block from the world to the evaluation; there is one such block in README and getting_started."""
    found = [
        body
        for page in (ROOT / "README.md", ROOT / "docs/getting_started.md")
        for body in re.findall(r"^```bash\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        if "finegrained make-factworld" in body and "finegrained evaluate" in body
    ]
    assert len(found) == 1 and found[0].startswith("W=outputs/factworld\nSEED=0\n")
    return str(found[0])


def environment(directory: Path, line: str) -> dict[str, str]:
    """Settings of a shell in which `finegrained`, in `directory/bin`, is a program of one line."""
    program = directory / "bin/finegrained"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
    program.chmod(0o755)
    search = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    own = {"PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": search, "OMP_NUM_THREADS": "1"}
    return {**os.environ, **own}


def shell(block: str, cwd: Path, variables: dict[str, str], timeout: float) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block],
        cwd=cwd,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout


def rates(directory: Path, name: str) -> dict[str, Any]:
    found = read_json(directory / WORK / name)
    assert isinstance(found, dict)
    return found


def followed(directory: Path, steps: int) -> Path:
    """A directory of its own after the block with small sizes; `steps` of fine-tuning, of which copying takes 200."""
    more = {**SMALL, "train-sft": [*SMALL["train-sft"], f"total_steps={steps}", f"validate_every={steps}"]}
    record = f"exec '{sys.executable}' -c 'import json, sys; print(json.dumps(sys.argv[1:]))' \"$@\""
    variables = environment(directory, record)
    calls = [json.loads(line) for line in shell(path_block(), directory, variables, 300).splitlines()]
    for name, *arguments in calls:
        done = run_script(name, *arguments, *more.get(name, []), cwd=directory)
        assert done.returncode == 0, f"{name} {' '.join(arguments)}: {done.stderr[-3000:]}"
    return directory


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the block makes, hardly fine-tuned."""
    return followed(tmp_path_factory.mktemp("reader"), 20)


@pytest.mark.scripts
def test_the_pages_commands_make_what_the_page_names(small: Path) -> None:
    work = small / WORK
    for name in ("world/test.json", "sft/policy", "feedback.json", "feedback_dev.json", "evaluation.json"):
        assert (work / name).exists(), name
    for kind in ("relevance", "factuality", "completeness", "preference"):
        assert 0 <= read_json(work / f"reward_models/{kind}/metrics.json")["dev"]["accuracy"] <= 1
    assert not [path for path in small.rglob("*") if path.is_file() and WORK not in path.relative_to(small).parents
                and path.relative_to(small).parts[0] != "bin"]  # fmt: skip


@pytest.mark.scripts
@pytest.mark.parametrize("system", ["fine_grained_rlhf", "preference_rlhf"])
def test_the_pages_commands_train_as_the_grid_chose(small: Path, system: str) -> None:
    run = small / WORK / system
    config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    grid = {"fine_grained_rlhf": "grid", "preference_rlhf": "preference_grid"}[system]
    chosen = read_json(ROOT / f"docs/results/factworld/{grid}.json")["summary"][system]
    assert {"lr": config["optimizer"]["lr"], "beta": config["ppo"]["kl"]["beta"]} == chosen
    steps, validations = read_jsonl(run / "metrics.jsonl"), read_jsonl(run / "eval.jsonl")
    assert [row["step"] for row in steps] == [1, 2] and [row["step"] for row in validations] == [0, 1, 2]
    assert all(row["alignment"] == 1.0 for row in steps) and abs(steps[0]["kl"]) < 1e-5 < abs(steps[-1]["kl"])
    exported, best = read_json(run / "policy/export.json"), max(validations, key=lambda row: row["score"])
    assert (exported["step"], exported["score"]) == (best["step"], best["score"])


@pytest.mark.slow
@pytest.mark.scripts
def test_the_pages_commands_reach_a_policy_that_answers(tmp_path: Path) -> None:
    small = followed(tmp_path, 200)
    for name in ("evaluation_sft.json", "evaluation_preference_rlhf.json", "evaluation.json"):
        found = rates(small, name)
        assert found["examples"] == 24 and found["finished_share"] > 0.9 and 5 < found["mean_tokens"] < 40
        assert found["rouge_lsum"] > 0.5 and found["completeness"] > 0.5
        assert found["relevance_error_rate"] < 0.6 and found["factual_error_rate"] < 0.8


@pytest.mark.scripts
def test_the_demos_report_of_what_the_pages_commands_made(small: Path) -> None:
    """Its steps write the same files in the same places; those of the report are all that is left to do."""
    work = small / WORK
    systems = {"sft": "_sft", "preference_rlhf": "_preference_rlhf", "fine_grained_rlhf": ""}
    for system, suffix in systems.items():
        write_json(work / f"evaluation/{system}.json", read_json(work / f"evaluation{suffix}.json"))
    made = ("world", "models", "sft", "outputs", "feedback", "feedback_dev", "reward_models", "preference_model")
    made += tuple(systems)[1:]
    without = [f"steps.{name}=null" for name in made]
    done = run_script("run_experiment", "pipeline=factworld/demo", f"output_dir={work}", *without)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "| fine_grained_rlhf |" in done.stdout and str(work / "report.json") in done.stdout
    report = read_json(work / "report.json")
    assert report["seed"] == 0 and report["annotator_noise"] == 1.0
    for system in systems:
        row, measured = report[system], read_json(work / f"evaluation/{system}.json")
        for name in ("relevance_error_rate", "factual_error_rate", "completeness", "rouge_lsum", "mean_tokens"):
            assert row[name] == measured[name]
        assert row["episodes"] == (0 if system == "sft" else 2 * 4 * 4)
        assert row["feedback_items"] == (0 if system == "sft" else 48) and row["seconds"] > 0
    for kind in ("relevance", "factuality", "completeness", "preference"):
        accuracy = read_json(work / f"reward_models/{kind}/metrics.json")["dev"]["accuracy"]
        assert report["reward_models"][kind]["dev_accuracy"] == accuracy


@pytest.mark.slow
@pytest.mark.timeout(7500)
def test_the_pages_commands_as_they_stand_remove_errors(tmp_path: Path) -> None:
    """Full size, a seed that no setting was chosen on; a quarter of an hour of one core."""
    block = path_block().replace("SEED=0\n", "SEED=613\n")
    shell(block, tmp_path, environment(tmp_path, f"exec '{sys.executable}' -m finegrained_rlhf \"$@\""), 7200)
    sft, ours = rates(tmp_path, "evaluation_sft.json"), rates(tmp_path, "evaluation.json")
    assert ours["examples"] == sft["examples"] == 500
    assert ours["relevance_error_rate"] <= 0.7 * sft["relevance_error_rate"]
    assert ours["factual_error_rate"] <= 0.5 * sft["factual_error_rate"]
    assert ours["completeness"] >= sft["completeness"] and ours["finished_share"] > 0.95
    assert read_json(tmp_path / WORK / "fine_grained_rlhf/policy/export.json")["step"] > 0
