"""The shortest real runs of `finegrained train-conqrr` and `finegrained rewrite`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from conqrr_toy import make_files, questions
from safetensors.torch import load_file
from script_runs import rows, run_in_two_processes, run_script
from seq2seq_toy import seq2seq_config
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

pytestmark = pytest.mark.scripts


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_files(tmp_path_factory.mktemp("conqrr"))


def train(files: Path, output: Path, *more: str) -> list[str]:
    return [
        "train_conqrr",
        f"data={files}/questions.jsonl",
        f"validation_data={files}/questions.jsonl",
        "validation_share=0",
        f"labels={files}/labels.jsonl",
        f"index={files}/index",
        f"policy.path={files}/t5",
        f"output_dir={output}",
        "total_steps=2",
        "checkpoint_every=1",
        "validate_every=1",
        "validation_pool=4",
        "samples_every=1",
        "training.batch_size=3",
        "training.samples=3",
        "training.max_new_tokens=10",
        "training.micro_batch_prompts=2",
        "training.kl.beta=0.05",
        "optimizer.warmup_steps=0",
        "optimizer.lr=1e-2",
        "processes.precision=fp32",
        *more,
    ]


@pytest.fixture(scope="module")
def trained(files: Path) -> Path:
    done = run_script(*train(files, files / "run", "tracking=wandb", "tracking.mode=disabled"))
    assert done.returncode == 0, done.stderr
    assert "query rewriter: the policy of step" in done.stdout
    return files / "run"


def test_a_run_and_its_files(trained: Path) -> None:
    metrics = rows(trained / "metrics.jsonl")
    assert [row["step"] for row in metrics] == [1, 2]
    assert {"loss/rl", "loss/ce", "loss/kl", "kl", "score/greedy", "reward"} <= metrics[0].keys()
    assert {"score", "accuracy", "rouge1"} <= rows(trained / "eval.jsonl")[0].keys()
    assert {"metrics.json", "policy", "samples", "config.yaml"} <= {path.name for path in trained.iterdir()}


@pytest.mark.parametrize("sharding", ["gradients", pytest.param("none", marks=pytest.mark.slow)])
def test_two_processes_train_what_one_does(files: Path, trained: Path, tmp_path: Path, sharding: str) -> None:
    """The batch of 3 and the 12 validation questions in pools of 4 meet two processes."""
    done = run_in_two_processes(*train(files, tmp_path / "run"), f"processes.sharding={sharding}")
    assert done.returncode == 0, done.stderr
    for ours, theirs in zip(rows(tmp_path / "run/metrics.jsonl"), rows(trained / "metrics.jsonl"), strict=True):
        assert ours.pop("processes") == 2 and theirs.pop("processes") == 1
        assert ours == pytest.approx(theirs, abs=1e-4)
    start, one, two = (
        load_file(path / "policy/model.safetensors")
        for path in (
            trained / "checkpoints/step_0",
            trained / "checkpoints/step_2",
            tmp_path / "run/checkpoints/step_2",
        )
    )
    assert max(float((one[name] - start[name]).abs().max()) for name in one) > 1e-3
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 1e-5


@pytest.mark.slow
def test_an_encoder_decoder_beside_t5_is_trained_and_rewrites(files: Path, tmp_path: Path) -> None:
    """BART: its start token is given, and its positions are a table; one process and two."""
    words = AutoTokenizer.from_pretrained(files / "t5")
    torch.manual_seed(0)
    config = seq2seq_config("bart", size=len(words), max_position_embeddings=128, init_std=0.3)
    for saved in (AutoModelForSeq2SeqLM.from_config(config), words):
        saved.save_pretrained(tmp_path / "bart")
    for name, start in (("one", run_script), ("two", run_in_two_processes)):
        done = start(*train(files, tmp_path / name, f"policy.path={tmp_path}/bart"))
        assert done.returncode == 0, done.stderr
    start_weights, one, two = (
        load_file(tmp_path / name / f"checkpoints/step_{step}/policy/model.safetensors")
        for name, step in (("one", 0), ("one", 2), ("two", 2))
    )
    assert max(float((one[name] - start_weights[name]).abs().max()) for name in one) > 1e-3
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 1e-5
    given = [f"checkpoint={tmp_path}/one", f"index={files}/index", "rewriting.max_new_tokens=10", "k=2"]
    done = run_script("rewrite", *given, f"input={files}/questions.jsonl", f"output={tmp_path}/rewrites.jsonl")
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "rewrites.jsonl").read_text().splitlines()) == len(questions())


def test_rewrites_and_passages(files: Path, trained: Path, tmp_path: Path) -> None:
    script = "rewrite"
    given = [f"checkpoint={trained}", f"index={files}/index", "rewriting.max_new_tokens=10", "k=2"]
    done = run_script(script, *given, f"input={files}/questions.jsonl", f"output={tmp_path}/rewrites.jsonl")
    assert done.returncode == 0, done.stderr
    written = [json.loads(line) for line in (tmp_path / "rewrites.jsonl").read_text().splitlines()]
    assert [row["id"] for row in written] == [question.id for question in questions()]
    turns = [*questions()[1].history, questions()[1].question]
    done = run_script(script, *given, f"turns={json.dumps(turns)}")
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    assert (row["rewrite"], row["passages"]) == (written[1]["rewrite"], written[1]["passages"])


def test_contradictions_are_one_line(files: Path, tmp_path: Path) -> None:
    done = run_script(*train(files, tmp_path / "run", "labels=null"))
    assert done.returncode == 2 and "labels=FILE" in done.stderr and "Traceback" not in done.stderr
