"""PPO steps at paper scale and at the shapes of today's decoder-only models: ours against limits, plain transformers.

Ours comes first and alone; the plain side has items of its own. A short lease then knows all that ours does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch

from benchmarks.equality import check_equality, entry
from benchmarks.families import CausalShape
from benchmarks.gpu.items import Item, Result, Setting
from benchmarks.limits import limits
from benchmarks.machine import measure_rates
from benchmarks.ours import Ours
from benchmarks.plain_causal import plain_side
from benchmarks.profiles import PHASES, Profile, choose_profile
from benchmarks.rounds import Side, turn
from benchmarks.workload import Workload
from finegrained_rlhf.core.errors import ConsistencyError

GIB = 2**30
STEP_SECONDS = {"H200": 1.0, "H100": 1.3}
"""A step of 32 episodes with T5-large, by GPU."""
TIMES_PLAIN, DECODE_OF_LIMIT, UPDATE_OF_LIMIT = 8.0, 3.0, 1 / 0.4


def t5_profile(setting: Setting) -> Profile:
    """T5-large with T5-base's value model, three Longformer-base."""
    return _named(setting, "t5")


def smollm2_profile(setting: Setting) -> Profile:
    """SmolLM2-135M as policy, reference and value model."""
    shape = CausalShape("llama", 576, 1536, 30, 9, 3, 64)
    return _shaped(_named(setting, "llama"), setting, shape, "SmolLM2-135M's shape", 49152)


def qwen3_profile(setting: Setting) -> Profile:
    """Qwen3-1.7B's widths with as many of its 28 layers as both sides together have room for in `equality`."""
    layers = 28 if _memory(setting.device) > 120 * GIB else 12
    shape = CausalShape("qwen3", 2048, 6144, layers, 16, 8, 128)
    profile = _shaped(
        _named(setting, "qwen3"), setting, shape, f"Qwen3-1.7B's widths, {layers} of its 28 layers", 151936
    )
    value = replace(shape, width=1024, inner=3072, layers=4)
    return (
        profile if setting.small else replace(profile, value=value, micro_batch_prompts=4, plain_micro_batch_prompts=1)
    )


SHAPES: dict[str, Callable[[Setting], Profile]] = {"t5": t5_profile, "smollm2": smollm2_profile, "qwen3": qwen3_profile}


def of_shapes(part: str, measure: Callable[[str, Setting], Result], limit_s: float, prefix: str = "") -> list[Item]:
    """An item a shape; `measure` gets the shape's name."""
    return [Item(part, prefix + name, partial(measure, name), limit_s) for name in SHAPES]


def step_items() -> list[Item]:
    """Ours of every shape, and T5's with compiled blocks."""
    return [*of_shapes("steps", ours, 180), Item("steps", "t5_compiled", partial(ours, "t5", compiled=True), 240)]


def plain_items() -> list[Item]:
    """The plain side of every shape."""
    return of_shapes("plain", plain, 240)


def same_step_items() -> list[Item]:
    """Whether both sides compute the same, of every shape."""
    return of_shapes("equality", same_step, 120, prefix="step_")


def _named(setting: Setting, family: str) -> Profile:
    profile = choose_profile({"profile": "tiny" if setting.small else "gpu", "family": family})
    return replace(profile, device=setting.device.type, lengths=("fixed",), rounds=1 if setting.small else 2)


def _shaped(profile: Profile, setting: Setting, shape: CausalShape, note: str, vocabulary: int) -> Profile:
    if setting.small:
        return profile
    return replace(profile, policy=shape, value=shape, note=note, vocabulary=vocabulary)


def _memory(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0


def ours(name: str, setting: Setting, compiled: bool = False) -> Result:
    """Seconds by phase of our side of a shape, against what the machine can do; for T5 with targets."""
    profile = replace(SHAPES[name](setting), compiled=compiled)
    rates = measure_rates(setting.device, profile.precision, setting.small)
    setting.say(f"copy {rates.copy / 1e9:.1f} GB/s, matmul {rates.matmul / 1e9:.0f} GFLOP/s ({profile.precision})")
    workload = Workload(profile, setting.scratch / "models")

    def result(side: Side) -> Result:
        floors = [limits(profile, work, rates) for work in side.work]
        phases = {}
        for phase in PHASES if floors else ():
            seconds, limit = side.seconds(phase), floors[-1][phase]  # all responses are of one length
            phases[phase] = {"ours_s": seconds, "limit_s": limit, "times_limit": seconds / limit}
        document = {
            **_measured(profile, side, phases),
            "copy_bytes_per_s": rates.copy,
            "matmul_flops_per_s": rates.matmul,
        }
        if phases and _has_targets(name, setting):
            document["targets"] = targets_of(phases, torch.cuda.get_device_name(setting.device))
        return document

    side = Side(lambda: Ours(workload, profile.lengths[0], setting.scratch / "run"))
    return _rounds(workload, "ours", side, setting, result)


def plain(name: str, setting: Setting) -> Result:
    """Seconds by phase of the plain side of a shape, and how many times ours they are.

    Raises:
        ConsistencyError: ours has not been measured.
    """
    compared = setting.measured.get(f"steps.{name}", {}).get("phases")
    if not compared:
        raise ConsistencyError(f"nothing to compare with: part=steps.{name} comes first")
    profile = SHAPES[name](setting)
    workload = Workload(profile, setting.scratch / "models")

    def result(side: Side) -> Result:
        phases = {}
        for phase in PHASES if side.steps else ():
            seconds, of_ours = side.seconds(phase), compared[phase]["ours_s"]
            phases[phase] = {"plain_s": seconds, "ours_s": of_ours, "ratio": seconds / max(of_ours, 1e-12)}
        document = _measured(profile, side, phases)
        if phases and _has_targets(name, setting):
            document["targets"] = {"plain over ours, inverse": entry(1 / phases["total"]["ratio"], 1 / TIMES_PLAIN)}
        return document

    return _rounds(workload, "plain", Side(lambda: plain_side(workload, profile.lengths[0])), setting, result)


def _has_targets(name: str, setting: Setting) -> bool:
    return name == "t5" and setting.device.type == "cuda" and not setting.small


def same_step(name: str, setting: Setting) -> Result:
    """Whether both sides of a shape draw, judge and learn the same."""
    return {"equal": check_equality(SHAPES[name](setting), setting.scratch)}


def _rounds(workload: Workload, name: str, side: Side, setting: Setting, result: Callable[[Side], Result]) -> Result:
    """All rounds of a side; what there is after each is kept."""
    profile = workload.profile
    for number in range(-profile.warmup, profile.rounds):
        turn(workload, profile.lengths[0], number, name, side, setting.say)
        setting.keep(result(side))
    return result(side)


def _measured(profile: Profile, side: Side, phases: dict[str, dict[str, float]]) -> Result:
    return {
        "model": profile.note,
        "phases": phases,
        "warm_up": side.warm_up,
        "rounds": side.steps,
        "response_tokens": side.tokens,
        "peak_bytes": side.peak,
        "resident_bytes": side.resident,
        "settings": asdict(profile),
    }


def targets_of(phases: dict[str, dict[str, float]], gpu: str) -> dict[str, dict[str, Any]]:
    """What our step at paper scale should reach: seconds by GPU, and the distance of phases from limits."""
    seconds = {name: limit for name, limit in STEP_SECONDS.items() if name in gpu}
    return {
        **{f"seconds on {name}": entry(phases["total"]["ours_s"], limit) for name, limit in seconds.items()},
        "rollout over its limit": entry(phases["rollout"]["times_limit"], DECODE_OF_LIMIT),
        "update over its limit": entry(phases["update"]["times_limit"], UPDATE_OF_LIMIT),
    }
