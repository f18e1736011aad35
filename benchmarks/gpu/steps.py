"""PPO steps at paper scale and at the shapes of today's decoder-only models, against plain transformers and limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from benchmarks.equality import entry
from benchmarks.families import CausalShape
from benchmarks.gpu.items import Item, Result, Setting
from benchmarks.ppo_step import benchmark
from benchmarks.profiles import Profile, choose_profile

GIB = 2**30
STEP_SECONDS = {"H200": 1.0, "H100": 1.3}
"""A step of 32 episodes with T5-large, by GPU."""
TIMES_PLAIN, DECODE_OF_LIMIT, UPDATE_OF_LIMIT = 8.0, 3.0, 1 / 0.4


def step_items() -> list[Item]:
    """One a shape."""
    return [
        Item("steps", "t5", lambda setting: _run(t5_profile(setting), setting, targets=True)),
        Item("steps", "smollm2", lambda setting: _run(smollm2_profile(setting), setting)),
        Item("steps", "qwen3", lambda setting: _run(qwen3_profile(setting), setting)),
    ]


def t5_profile(setting: Setting) -> Profile:
    """T5-large with T5-base's value model, three Longformer-base."""
    return _named(setting, "t5")


def smollm2_profile(setting: Setting) -> Profile:
    """SmolLM2-135M as policy, reference and value model."""
    shape = CausalShape("llama", 576, 1536, 30, 9, 3, 64)
    return _shaped(_named(setting, "llama"), setting, shape, "SmolLM2-135M's shape", 49152)


def qwen3_profile(setting: Setting) -> Profile:
    """Qwen3-1.7B's widths with as many of its 28 layers as both sides together have room for."""
    layers = 28 if _memory(setting.device) > 120 * GIB else 12
    shape = CausalShape("qwen3", 2048, 6144, layers, 16, 8, 128)
    profile = _shaped(
        _named(setting, "qwen3"), setting, shape, f"Qwen3-1.7B's widths, {layers} of its 28 layers", 151936
    )
    value = replace(shape, width=1024, inner=3072, layers=4)
    return profile if setting.small else replace(profile, value=value, micro_batch_prompts=1)


def _named(setting: Setting, family: str) -> Profile:
    profile = choose_profile({"profile": "tiny" if setting.small else "gpu", "family": family})
    return replace(profile, device=setting.device.type, lengths=("fixed",), rounds=1 if setting.small else 3)


def _shaped(profile: Profile, setting: Setting, shape: CausalShape, note: str, vocabulary: int) -> Profile:
    if setting.small:
        return profile
    return replace(profile, policy=shape, value=shape, note=note, vocabulary=vocabulary)


def _memory(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0


def _run(profile: Profile, setting: Setting, targets: bool = False) -> Result:
    document = benchmark(profile, setting.say)
    if targets and not setting.small:
        document["targets"] = targets_of(document)
    return document


def targets_of(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What a step at paper scale should reach: seconds by GPU, times plain, and the distance of phases from limits."""
    phases = document["phases"]
    total, rollout, update = (phases[name] for name in ("total", "rollout", "update"))
    gpu = str(document["machine"]["gpu"])
    found = {f"seconds on {name}": entry(total["ours_s"], limit) for name, limit in STEP_SECONDS.items() if name in gpu}
    return {
        **found,
        "plain over ours, inverse": entry(total["ours_s"] / total["plain_s"], 1 / TIMES_PLAIN),
        "rollout over its limit": entry(rollout["ours_s"] / rollout["limit_s"], DECODE_OF_LIMIT),
        "update over its limit": entry(update["ours_s"] / update["limit_s"], UPDATE_OF_LIMIT),
    }
