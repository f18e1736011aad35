"""Models, a job and a way to measure that the tests of the memory estimate share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.models.config import PolicyConfig, ValueConfig
from finegrained_rlhf.models.tiny import TinyGPT2Config, TinyLongformerConfig, TinyT5Config
from finegrained_rlhf.models.tiny_networks import (
    build_gpt2,
    build_longformer,
    build_t5,
    build_tokenizer,
    causal_tokenizer,
    encoder_tokenizer,
)
from finegrained_rlhf.preflight.memory.plan import Activations, ModelShape, Plan, RewardModelShape
from finegrained_rlhf.rewards import RewardConfig
from finegrained_rlhf.rollout import RolloutConfig
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.training.ppo.config import PPOConfig
from finegrained_rlhf.training.ppo.job import TrainPPO
from finegrained_rlhf.training.ppo.parts import PPOData
from reward_models.job import MakeTinyRewardModels
from reward_models.scorers import SegmentScorer, SequenceScorer

WORDS = [f"w{number}" for number in range(7900)]
PROMPT_TOKENS, RESPONSE_TOKENS, SAMPLES = 256, 64, 4
SHAPE = ModelShape(
    parameters=1000,
    trained=1000,
    decoder_parameters=400,
    encoder_layers=2,
    decoder_layers=3,
    width=8,
    keys=6,
    heads=2,
    feed_forward=32,
    feed_forward_copies=2,
    vocabulary=50,
)
PLAN = Plan(
    policy=SHAPE,
    policy_activations=Activations(10, 100, 200, 7, 5),
    value=replace(SHAPE, parameters=600, trained=600),
    value_activations=Activations(1, 10, 20, 3, 2),
    rewards=(RewardModelShape("style", 500, 300, 4, 16, 96, 4, 40),),
    reference_copy=True,
    bf16=False,
    cuda=False,
    fast=True,
    processes=1,
    prompts=4,
    samples=3,
    prompt_tokens=20,
    piece_tokens=20,
    response_tokens=10,
    prompts_per_batch=4,
    validation_prompts=0,
    micro_batch_prompts=2,
    micro_batch_tokens=None,
    checkpointing=False,
    scored="plain",
)
"""A plan to count by hand."""


@dataclass(frozen=True)
class OwnPrompts(TrainPPO):
    """A job whose prompts are given, so that all of them have the longest length."""

    prompts: tuple[Prompt, ...] = ()

    def read_data(self, policy: Any) -> PPOData:
        return PPOData(self.prompts, ())


def save_models(root: Path) -> Path:
    """Models of moderate size over 8,000 words, and two tiny reward models."""
    plain = build_tokenizer([" ".join(WORDS)], vocab_size=8000)
    causal, encoder = causal_tokenizer(plain, 512), encoder_tokenizer(plain, 512)
    sizes = TinyT5Config(d_model=256, d_ff=1024, num_layers=4, num_heads=4)
    for name, tokenizer, model in (
        ("t5", plain, build_t5(plain, sizes, 0)),
        ("untied", plain, build_t5(plain, replace(sizes, d_model=16, d_ff=32, gated=True, tied=False), 0)),
        ("gpt2", causal, build_gpt2(causal, TinyGPT2Config(256, 4, 4, 512), 0)),
        ("longformer", encoder, build_longformer(encoder, TinyLongformerConfig(max_length=512), 0)),
    ):
        model.save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    MakeTinyRewardModels(str(root / "longformer"), str(root / "rewards"), kinds=("relevance", "preference")).run()
    return root


def job_of(
    models: Path, kind: str, prompts: int = 2, micro: int = 1, pieces: tuple[int, ...] = (), **changes: Any
) -> OwnPrompts:
    ids = tuple(10 + i for i in range(PROMPT_TOKENS))
    metadata = {"question": "w1 w2", "passages": [Passage("", "w3", (" ".join(WORDS[:150]),))], "references": ("w4",)}
    rewards = {
        "relevance": SegmentScorer(str(models / "rewards" / "relevance"), segmenter="rules"),
        "preference": SequenceScorer(str(models / "rewards" / "preference")),
    }
    settings: dict[str, Any] = {
        "output_dir": str(models / "run"),
        "data": "given",
        "policy": PolicyConfig(str(models / kind)),
        "value": ValueConfig("separate", str(models / kind)),
        "reward": RewardConfig(rewards, dict.fromkeys(rewards, 0.5)),
        "rollout": RolloutConfig(prompts, SAMPLES, max_new_tokens=RESPONSE_TOKENS),
        "ppo": PPOConfig(epochs=1, micro_batch_prompts=micro),
        "optimizer": OptimizerConfig(lr=1e-5),
        "total_steps": 10,
        "processes": ProcessConfig(precision="fp32"),
        "prompts": tuple(Prompt(f"p{i}", "", ids, metadata, pieces=pieces) for i in range(prompts)),
    }
    return OwnPrompts(**{**settings, **changes})


def measured(run: Callable[[], object], device: torch.device) -> int:
    """The highest rise of torch's allocations during `run`, in bytes."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = highest = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        highest = max(highest, now)
    return highest
