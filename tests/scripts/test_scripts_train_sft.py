"""The shortest real runs of `finegrained train-sft`, and how a command meets mistakes on its command line."""

from __future__ import annotations

import json
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from script_runs import ROOT, rows, run_again_after_a_kill, run_in_two_processes, run_process, start_script
from script_runs import run_script as run

from finegrained_rlhf.factworld.make import MakeFactWorld
from finegrained_rlhf.models.tiny import MakeTinyModels, TinyT5Config

pytestmark = pytest.mark.scripts


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("world")
    MakeFactWorld(str(path), train=4, dev=5, test=0, sft_train=13, sft_dev=0).run()
    MakeTinyModels(
        data=[str(path / "train.json"), str(path / "sft_train.json")],
        output_dir=str(path / "models"),
        t5=TinyT5Config(d_model=32, d_ff=32, num_layers=1),
    ).run()
    return path


def sft(world: Path, output: Path, *more: str) -> list[str]:
    return [
        "train_sft",
        "experiment=factworld/sft",
        f"output_dir={output}",
        f"data={world}/sft_train.json",
        f"validation_data={world}/dev.json",
        f"policy.path={world}/models/t5",
        "total_steps=3",
        "batch_size=7",
        "micro_batch_size=2",
        "max_answer_tokens=12",
        "validate_every=2",
        "checkpoint_every=1",
        "keep_checkpoints=9",
        "optimizer.warmup_steps=0",
        *more,
    ]


@pytest.fixture(scope="module")
def whole(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("sft") / "run"
    done = run(*sft(world, output), cwd=world)
    assert done.returncode == 0, done.stderr
    return output


def weights(output: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(output / f"checkpoints/step_{step}/policy/model.safetensors")


def test_the_run_directory_holds_what_it_should_and_hydra_leaves_nothing(whole: Path, world: Path) -> None:
    assert [row["step"] for row in rows(whole / "metrics.jsonl")] == [1, 2, 3]
    assert [row["step"] for row in rows(whole / "eval.jsonl")] == [0, 2, 3]
    assert {"score", "rouge_lsum", "factual_error_rate", "mean_tokens"} <= rows(whole / "eval.jsonl")[0].keys()
    assert (whole / "policy/model.safetensors").is_file()
    assert "resume: auto" in (whole / "config.yaml").read_text()
    assert not list(world.glob("outputs*")) and not list(world.glob("*.log")) and not list(world.glob(".hydra"))


@pytest.mark.parametrize(
    "sharding", ["full", *(pytest.param(s, marks=pytest.mark.slow) for s in ("none", "gradients"))]
)
def test_two_processes_train_what_one_does(whole: Path, world: Path, tmp_path: Path, sharding: str) -> None:
    """The batch of 7 and the 5 validation prompts do not divide by 2."""
    done = run_in_two_processes(*sft(world, tmp_path / "run"), f"processes.sharding={sharding}")
    assert done.returncode == 0, done.stderr
    for ours, theirs in zip(rows(tmp_path / "run/metrics.jsonl"), rows(whole / "metrics.jsonl"), strict=True):
        assert ours.pop("processes") == 2 and theirs.pop("processes") == 1
        assert ours == pytest.approx(theirs, abs=1e-4)
    start, one, two = weights(whole, 0), weights(whole, 3), weights(tmp_path / "run", 3)
    assert max(float((one[name] - start[name]).abs().max()) for name in one) >= 1e-3
    assert max(float((one[name] - two[name]).abs().max()) for name in one) <= 1e-5
    assert [row["score"] for row in rows(tmp_path / "run/eval.jsonl")] == pytest.approx(
        [row["score"] for row in rows(whole / "eval.jsonl")], abs=1e-6
    )


@pytest.mark.slow
def test_killed_and_started_again(whole: Path, world: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    run_again_after_a_kill(*sft(world, output), when=(output / "checkpoints/step_1").exists)
    for step in (1, 2, 3):
        ours = output / f"checkpoints/step_{step}/policy/model.safetensors"
        assert ours.read_bytes() == (whole / f"checkpoints/step_{step}/policy/model.safetensors").read_bytes()
    assert rows(output / "metrics.jsonl") == rows(whole / "metrics.jsonl")
    assert rows(output / "eval.jsonl") == rows(whole / "eval.jsonl")


def test_a_run_that_is_done_goes_on_only_with_what_it_began_with(whole: Path, world: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    shutil.copytree(whole, output)
    again = run(*sft(world, output))
    assert again.returncode == 0 and "is done: it ended at step 3" in again.stderr
    changed = run(*sft(world, output, "total_steps=4", "optimizer.lr=0.1"))
    assert changed.returncode == 2 and "optimizer.lr: " in changed.stderr and " -> 0.1;" in changed.stderr
    assert rows(output / "metrics.jsonl") == rows(whole / "metrics.jsonl")
    allowed = run(*sft(world, output, "total_steps=4", "optimizer.lr=0.1", "resume_changed=allow"))
    assert allowed.returncode == 0 and "these keys differ: optimizer.lr" in allowed.stderr
    assert [row["step"] for row in rows(output / "metrics.jsonl")] == [1, 2, 3, 4]


def test_ctrl_c_says_how_to_go_on(world: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    process = start_script(*sft(world, output, "total_steps=5000", "validate_every=5000"))
    deadline = time.monotonic() + 120
    while not (output / "checkpoints/step_2").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    done = process.wait(timeout=60)
    assert done.returncode == 130
    assert "the same command resumes from step" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("outpt_dir=x", "unknown key 'outpt_dir'"),
        ("optimizer.learning_rate=1", "unknown key 'optimizer.learning_rate'"),
        ("+optimizer.nothing=1", "unknown key 'nothing'"),
        ("experiment=nothing", "experiment=nothing does not exist; expected one of"),
        ("total_steps=0", "total_steps: expected null or at least 1, got 0"),
        ("data=/nowhere/x.json", "data: /nowhere/x.json: no such file"),
        ("resume=/nowhere", "resume: /nowhere: no such file or directory"),
        ("policy.path=/nowhere", "policy.path: /nowhere: no such file or directory"),
    ],
)
def test_a_mistake_is_one_line(world: Path, tmp_path: Path, argument: str, message: str) -> None:
    done = run(*sft(world, tmp_path / "run", argument))
    assert done.returncode != 0 and done.stdout == ""
    *before, line = done.stderr.strip().splitlines()
    assert line.startswith("error: ") and message in line
    assert not before or before == ["13 of 13 answers are longer than 12 tokens and lose their end"]


def test_what_must_be_given_is_named() -> None:
    done = run_process(str(ROOT / "scripts/train_sft.py"))
    assert done.returncode == 2
    assert all(key in done.stderr for key in ("data=", "output_dir=", "policy.path="))


@pytest.mark.slow
def test_tracking_by_wandb_offline(world: Path, tmp_path: Path) -> None:
    done = run(*sft(world, tmp_path / "run", "tracking=wandb", "tracking.mode=offline", "total_steps=1"))
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run/tracking.json").read_text())["wandb_id"]
    assert list((tmp_path / "run/wandb").glob("offline-run-*"))
