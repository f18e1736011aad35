"""The shortest real runs of `finegrained train-pairs`: in one process and two, killed, with LoRA."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from script_runs import rows, run_again_after_a_kill, run_in_two_processes
from script_runs import run_script as run

from finegrained_rlhf.models.tiny import MakeTinyModels, TinyT5Config

pytestmark = pytest.mark.scripts
SAID = (
    "the mill is old",
    "a boat leaves at dawn",
    "the house has two doors",
    "rain falls in spring",
    "the road is long",
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pairs")
    prompts = [
        {
            "id": f"p{n}",
            "text": f"what of {text}?",
            "question": "what?",
            "passages": [],
            "answer": [f"{text}.", f"{text} and {SAID[n - 1]}."],
        }
        for n, text in enumerate(SAID)
    ]
    (path / "pairs.json").write_text(json.dumps(prompts))
    models = MakeTinyModels(
        data=[str(path / "pairs.json")],
        output_dir=str(path / "models"),
        t5=TinyT5Config(d_model=32, d_ff=32, num_layers=1),
    )
    models.run()
    return path


def pairs(world: Path, output: Path, *more: str) -> list[str]:
    return [
        "train_pairs",
        f"output_dir={output}",
        f"data={world}/pairs.json",
        f"validation_data={world}/pairs.json",
        f"policy.path={world}/models/t5",
        "total_steps=4",
        "batch_size=5",  # does not divide by two
        "micro_batch_size=2",
        "max_answer_tokens=16",
        "validate_every=2",
        "checkpoint_every=1",
        "keep_checkpoints=9",
        "optimizer.lr=3e-3",
        "optimizer.warmup_steps=0",
        "processes.precision=fp32",
        "dropout=0.1",
        *more,
    ]


def weights(output: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(output / f"checkpoints/step_{step}/policy/model.safetensors")


@pytest.fixture(scope="module")
def whole(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("run") / "run"
    done = run(*pairs(world, output, "dropout=0", "sft=0.5", "positive=2"), cwd=world)
    assert done.returncode == 0, done.stderr
    return output


def test_it_learns_what_was_preferred(whole: Path) -> None:
    metrics = rows(whole / "metrics.jsonl")
    assert [row["step"] for row in metrics] == [1, 2, 3, 4]
    first, last = metrics[0], metrics[-1]
    assert first["moved/chosen"] == first["moved/rejected"] == 0  # the reference is what the run begins with
    assert last["loss"] < first["loss"] and last["moved/chosen"] > last["moved/rejected"] and last["accuracy"] == 1
    assert (whole / "policy/model.safetensors").is_file()


def test_two_processes_train_what_one_does(whole: Path, world: Path, tmp_path: Path) -> None:
    done = run_in_two_processes(*pairs(world, tmp_path / "run", "dropout=0", "sft=0.5", "positive=2"))
    assert done.returncode == 0, done.stderr
    for ours, theirs in zip(rows(tmp_path / "run/metrics.jsonl"), rows(whole / "metrics.jsonl"), strict=True):
        assert ours.pop("processes") == 2 and theirs.pop("processes") == 1
        assert ours == pytest.approx(theirs, abs=1e-3, rel=1e-4)
    one, two = weights(whole, 4), weights(tmp_path / "run", 4)
    assert max(float((one[name] - two[name]).abs().max()) for name in one) <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("more", [("spans=true", "shuffle=true"), ("policy=lora",)])
def test_killed_and_started_again(world: Path, tmp_path: Path, more: tuple[str, ...]) -> None:
    undisturbed, output = tmp_path / "whole", tmp_path / "run"
    done = run(*pairs(world, undisturbed, *more))
    assert done.returncode == 0, done.stderr
    run_again_after_a_kill(*pairs(world, output, *more), when=(output / "checkpoints/step_1").exists)
    assert rows(output / "metrics.jsonl") == rows(undisturbed / "metrics.jsonl")
    assert rows(output / "eval.jsonl") == rows(undisturbed / "eval.jsonl")
    for file in (undisturbed / "policy").glob("*.safetensors"):
        assert (output / "policy" / file.name).read_bytes() == file.read_bytes()
