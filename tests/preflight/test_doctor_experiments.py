"""The doctor examines every kind of PPO run that is small enough: policies, value models, LoRA and their mixtures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from doctor_toy import ROOT, case_maker, diagnose, make_smoke
from seq2seq_toy import seq2seq_config
from transformers import AutoModelForSeq2SeqLM

from finegrained_rlhf.models.loading import load_tokenizer

MODELS = "${output_dir}/prepared/models"
GPT2 = (f"policy.path={MODELS}/gpt2", f"value.path={MODELS}/gpt2")
SHARED = ("value=shared", "value.path=null")
RUNS = {
    "t5": (),
    "t5, lora": ("policy=lora",),
    "t5, shared value": SHARED,
    "t5, lora, shared value": ("policy=lora", *SHARED),
    "gpt2": GPT2,
    "gpt2, lora": ("policy=lora", *GPT2),
    "gpt2, shared value": (GPT2[0], *SHARED),
    "gpt2, lora, shared value": ("policy=lora", GPT2[0], *SHARED),
    "llama": ("policy=tiny_llama",),
    "llama, lora, shared value, continuous batching": (
        "policy=lora",
        f"policy.path={MODELS}/llama",
        *SHARED,
        "rollout.engine=continuous",
        "rollout.importance_cap=2.0",
    ),
    "t5, checkpointing, tempered": (
        "policy.gradient_checkpointing=true",
        "ppo.score_sampling_distribution=true",
    ),
}
PARTS = (
    "t5",
    "t5, shared value",
    "t5, lora",
    "t5, lora, shared value",
    "gpt2",
    "gpt2, lora",
    "gpt2, shared value",
    "llama",
)
"""Each of their settings is in another of the runs too."""


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_smoke(tmp_path_factory.mktemp("doctor") / "smoke")


@pytest.mark.parametrize(
    "overrides",
    [pytest.param(RUNS[run], id=run, marks=[pytest.mark.slow] if run in PARTS else []) for run in RUNS],
)
def test_every_check_passes(smoke: Path, tmp_path: Path, overrides: tuple[str, ...]) -> None:
    findings = diagnose(case_maker(smoke, tmp_path / "scratch")(*overrides))
    by_status = {f.check: f.status for f in findings}
    assert [f"{f.check}: {f.measured}" for f in findings if f.status == "fail"] == []
    for check in ("models", "responses", "rewards", "alignment", "start", "training step"):
        assert by_status[check] in ("pass", "warn"), check
    assert by_status["start"] == by_status["training step"] == "pass"


@pytest.mark.slow
def test_an_encoder_decoder_with_a_configuration_for_each_half(smoke: Path, tmp_path: Path) -> None:
    """The memory plan reads the sizes of encoder and decoder where the family keeps them."""
    place, words = tmp_path / "t5gemma", load_tokenizer(smoke / "prepared" / "models" / "t5")
    torch.manual_seed(0)
    AutoModelForSeq2SeqLM.from_config(seq2seq_config("t5gemma", size=len(words))).save_pretrained(place)
    words.save_pretrained(place)
    case = case_maker(smoke, tmp_path / "scratch")(f"policy.path={place}", f"value.path={place}")
    findings = diagnose(case)
    assert [f"{f.check}: {f.measured}" for f in findings if f.status == "fail"] == []
    by_status = {f.check: f.status for f in findings}
    assert by_status["start"] == by_status["training step"] == "pass"
    assert case.plan is not None and not case.plan.fast
    shape = case.plan.policy
    assert (shape.encoder_layers, shape.decoder_layers, shape.width, shape.keys) == (2, 2, 16, 16)


@pytest.mark.slow
@pytest.mark.scripts
@pytest.mark.parametrize("run", ["t5", "gpt2, lora", "gpt2, shared value", "llama"])
def test_two_processes_do_the_step_of_one(tmp_path: Path, run: str) -> None:
    """The whole preflight as a user calls it; adapters drawn apart were seen here alone."""
    command = [sys.executable, "scripts/doctor.py", "experiment=smoke", f"output_dir={tmp_path}/run", *RUNS[run]]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if "two processes" in line]
    assert "metrics of the step are those of one process" in line
