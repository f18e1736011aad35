"""Frozen weights in bf16: under bf16 autocast every number is the same, and only they are stored so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from chat_toy import save_chat_model
from ppo_toy import WordScorer
from rl_toy import model, policy, prompts, responses, tokenizer
from safetensors.torch import load_file

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.models.config import LoraConfig, PolicyConfig, ValueConfig
from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.models.weights.frozen import frozen_copy, linear_parameters, store_frozen
from finegrained_rlhf.models.weights.saving import save_policy
from finegrained_rlhf.rewards import RewardConfig
from finegrained_rlhf.rollout import RolloutConfig
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.training.ppo.config import PPOConfig
from finegrained_rlhf.training.ppo.job import TrainPPO
from finegrained_rlhf.training.sft.job import TrainSFT

ROWS = torch.tensor([0, 0, 1, 1, 2, 2])
KINDS = ("t5", "t5-v1.1", "gpt2")


def score(ours: Policy, kind: str) -> torch.Tensor:
    ids, mask = responses(kind)
    with torch.autocast("cpu", torch.bfloat16):
        return ours.logprobs(ours.encode(prompts(kind)), ROWS, ids, mask).logprobs


@pytest.mark.parametrize("kind", KINDS)
def test_a_frozen_copy_scores_alike_in_half_the_memory(kind: str) -> None:
    ours = policy(kind)
    expected = score(ours, kind)
    ours.frozen_in_bf16 = True
    reference = frozen_copy(ours)
    assert torch.equal(score(reference, kind), expected)
    stored = {name for name, p in reference.model.named_parameters() if p.dtype == torch.bfloat16}
    assert all(p.dtype == torch.float32 for p in ours.parameters())
    assert len(stored) == len(list(linear_parameters(ours.model))) > 0
    assert not any(("shared" in n or "wte" in n or "norm" in n or "relative" in n) for n in stored)
    assert ("lm_head.weight" in stored) == (kind == "t5-v1.1")  # the other heads are their embeddings
    with torch.autocast("cpu", torch.bfloat16):
        changed = policy(kind)
        with torch.no_grad():
            next(linear_parameters(changed.model)).add_(0.1)
    assert not torch.equal(score(changed, kind), expected)  # the test can fail


@pytest.mark.parametrize("kind", KINDS)
def test_lora_trains_alike_on_a_base_in_bf16(kind: str, tmp_path: Path) -> None:
    model(kind).save_pretrained(tmp_path)
    tokenizer(kind).save_pretrained(tmp_path)
    results = []
    for dtype in ("float32", "bfloat16"):
        torch.manual_seed(0)
        ours = PolicyConfig(str(tmp_path), LoraConfig(rank=2, alpha=6), frozen_dtype=dtype).load()
        trained = [p for p in ours.model.parameters() if p.requires_grad]
        assert {p.dtype for p in trained} == {torch.float32}
        with torch.no_grad():
            for place, parameter in enumerate(trained):
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(place)))
        logprobs = score(ours, kind)
        logprobs.sum().backward()
        results.append((logprobs.detach(), [p.grad.clone() for p in trained]))
        save_policy(ours, tmp_path / dtype)
    (one, gradients), (other, others) = results
    assert torch.equal(one, other)
    assert all(torch.equal(a, b) for a, b in zip(gradients, others, strict=True))
    full, rounded = (load_file(tmp_path / name / "model.safetensors") for name in ("float32", "bfloat16"))
    assert full.keys() == rounded.keys() and {tensor.dtype for tensor in rounded.values()} == {torch.float32}
    for name in full:  # the export is that of the rounded base: half a unit of bf16 at most
        assert torch.allclose(full[name], rounded[name], rtol=2**-8, atol=1e-3), name


def test_what_is_trained_is_never_rounded() -> None:
    ours = policy("t5")
    store_frozen(ours)
    assert {p.dtype for p in ours.parameters()} == {torch.float32}


def ppo(path: Path, **keys: Any) -> TrainPPO:
    return TrainPPO(
        **{
            "data": str(path / "data.jsonl"),
            "policy": PolicyConfig(str(path / "model"), frozen_dtype="bfloat16"),
            "value": ValueConfig("shared"),
            "reward": RewardConfig({"words": WordScorer()}, {"words": 1.0}),
            "rollout": RolloutConfig(2, 2, max_new_tokens=5, top_k=0, temperature=1.0),
            "ppo": PPOConfig(epochs=1),
            "optimizer": OptimizerConfig(lr=1e-3),
            "total_steps": 3,
            "output_dir": str(path / "run"),
            "max_prompt_tokens": 64,
            "checkpoint_every": 1,
            "processes": ProcessConfig(precision="bf16"),
            **keys,
        }
    )


@pytest.mark.parametrize("lora", [pytest.param(None, marks=pytest.mark.slow), LoraConfig(rank=2)], ids=["full", "lora"])
def test_ppo_learns_the_same_and_goes_on_bit_by_bit(tmp_path: Path, lora: LoraConfig | None) -> None:
    save_chat_model(tmp_path / "model")
    write_jsonl(tmp_path / "data.jsonl", [{"text": "the cat"}, {"text": "who ran far"}, {"text": "red"}])
    config = PolicyConfig(str(tmp_path / "model"), lora, frozen_dtype="bfloat16")
    states = []
    for name, steps, dtype in (("one", (3,), "bfloat16"), ("two", (1, 3), "bfloat16"), ("fp32", (3,), "float32")):
        for total in steps:
            job = ppo(
                tmp_path,
                policy=replace(config, frozen_dtype=dtype),
                output_dir=str(tmp_path / name),
                total_steps=total,
                rollout=RolloutConfig(2, 2, max_new_tokens=5, top_k=0, temperature=1.0, logprobs="update"),
            )
            job.run()
        file = "adapter_state" if lora else "policy/model"
        states.append(load_file(tmp_path / name / f"checkpoints/step_3/{file}.safetensors"))
    one, two, fp32 = states
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert all(torch.equal(one[name], fp32[name]) for name in one)


def test_where_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="frozen_dtype: expected one of float32, bfloat16"):
        PolicyConfig("x", frozen_dtype="half")
    with pytest.raises(ConfigError, match="needs processes.precision=bf16, got fp32"):
        ppo(tmp_path, processes=ProcessConfig(precision="fp32"))
    keys: dict[str, Any] = {"data": "x", "optimizer": OptimizerConfig(lr=1e-3), "output_dir": "y"}
    keys["processes"] = ProcessConfig(precision="bf16")
    with pytest.raises(ConfigError, match="nothing is frozen here"):
        TrainSFT(policy=PolicyConfig("x", frozen_dtype="bfloat16"), **keys)
    TrainSFT(policy=PolicyConfig("x", LoraConfig(), frozen_dtype="bfloat16"), **keys)
