"""The memory estimate against what torch allocates in a training step, and its command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from memory_toy import PROMPT_TOKENS, job_of, measured, save_models
from script_runs import run_script

from finegrained_rlhf.core.errors import ConfigError, ModelError
from finegrained_rlhf.models.config import LoraConfig, PolicyConfig, ValueConfig
from finegrained_rlhf.preflight.memory import formulas as memory
from finegrained_rlhf.preflight.memory.preflight import plan_of, preflight
from finegrained_rlhf.preflight.memory.report import peak
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.ppo.config import KLConfig, PPOConfig
from finegrained_rlhf.training.ppo.trainer import PPOTrainer


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_models(tmp_path_factory.mktemp("models"))


def lasting(trainer: PPOTrainer) -> int:
    """Bytes of all weights and of the optimizer's state."""
    models = [trainer.models.policy, trainer.models.value, trainer.models.reference.own]
    models += [scorer.model for scorer in trainer.composer.config.components.values()]
    tensors = [parameter for model in models if model is not None for parameter in model.parameters()]
    tensors += [value for state in trainer.models.optimizer._inner.state.values() for value in state.values()]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


VARIANTS: dict[str, dict[str, Any]] = {
    "full": {"kind": "t5"},
    "adapters": {
        "kind": "t5",
        "lora": True,
        "value": ValueConfig("shared"),
        "processes": ProcessConfig("bf16"),
        "ppo": PPOConfig(epochs=1, micro_batch_prompts=1, kl=KLConfig(measure="sampled")),  # else scoring needs most
    },
    "pieces": {"kind": "t5", "pieces": (PROMPT_TOKENS // 4,) * 4},
    "causal": {"kind": "gpt2", "micro": 2, "value": ValueConfig("shared")},
}


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_estimated_and_measured_peak_differ_by_less_than_a_fifth(models: Path, variant: str) -> None:
    settings = dict(VARIANTS[variant])
    if settings.pop("lora", False):
        settings["policy"] = PolicyConfig(str(models / "t5"), lora=LoraConfig(), gradient_checkpointing=True)
    job = job_of(models, **settings)
    processes = Processes(job.processes)
    plan = plan_of(job, processes)
    assert (plan.prompt_tokens, plan.fast) == (PROMPT_TOKENS, True)
    trainer = job.build(processes, RunDirectory(job.output_dir).create())
    trainer.train_step(1)  # the optimizer's state exists from here on
    stays = lasting(trainer)
    held = torch.cuda.memory_allocated() if plan.cuda else stays  # on a GPU the engine's caches stay too
    rise = measured(lambda: trainer.train_step(2), processes.device)
    assert memory.lasting_bytes(plan) - memory.kept_cache_bytes(plan) == pytest.approx(stays, rel=0.02)
    estimate, phase = peak(plan)
    assert phase.name == "update"
    assert estimate == pytest.approx(held + rise, rel=0.2)
    assert phase.needed == pytest.approx(rise, rel=0.2)


# From the command line ----------------------------------------------------------------------------------------------


def test_a_missing_model_is_named(models: Path) -> None:
    with pytest.raises(ModelError, match="nowhere"):
        plan_of(job_of(models, "nowhere"), Processes())


@pytest.mark.scripts
def test_dry_run_prints_and_leaves_nothing(tmp_path: Path) -> None:
    done = run_script("train_ppo", "experiment=smoke", "dry_run=true", f"output_dir={tmp_path}/run")
    assert done.returncode == 0, done.stderr
    assert "| optimizer" in done.stdout and "Expected peak" in done.stdout and ": fits." in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_dry_run_does_not_touch_a_run(models: Path, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    before = {path.name: (path.read_text(), path.stat().st_mtime_ns) for path in tmp_path.iterdir()}
    job = job_of(models, "untied", output_dir=str(tmp_path), dry_run=True, resume="never")
    assert "| update " in preflight(job, Processes(job.processes))
    with pytest.raises(ConfigError, match="dry_run"):
        job.run()
    assert {path.name: (path.read_text(), path.stat().st_mtime_ns) for path in tmp_path.iterdir()} == before
