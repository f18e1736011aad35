"""Both sides compute the same: tokens, log-probabilities, rewards, and what one update does to every parameter.

Knows both sides. Checks run in fp32 on the profile's own models, on few prompts of different lengths whose responses
end at different places; under bf16 the two sides are compared once more, with the tolerance that bf16 needs.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.families import T5Shape
from benchmarks.ours import Ours
from benchmarks.plain import Drawn, Plain
from benchmarks.plain_causal import plain_side
from benchmarks.profiles import Profile
from benchmarks.workload import COMPONENTS, Workload
from finegrained_rlhf.core.records import Greedy, Rollout
from finegrained_rlhf.inference.measure import PhaseTimer
from finegrained_rlhf.models.value import SeparateValueModel
from finegrained_rlhf.runtime.optimizer import OptimizerConfig

ADAM = OptimizerConfig(lr=1e-3, eps=1e-4, schedule="constant")
"""A large step, so that a wrong gradient shows. Adam's first one is lr · g / (|g| + eps), so rounding of a gradient
counts lr / eps = 10 times: the sides' gradients differ by up to 3e-7 where the terms of one component cancel (Llama's
embedding of a token that all prompts repeat: -1.2e-6 in a row of norm 1, each side as near to fp64 as the other)."""
FP32_TOLERANCE = {"cpu": 1e-5, "cuda": 1e-4}
"""Differences of log-probabilities, scores and parameters; on a GPU 24 layers are summed in other orders."""
BF16_TOLERANCE = {"logprobs": 0.02, "rewards": 0.1, "update": 0.2}
"""bf16: mean |Δ log-probability| in nats; mean |Δ score|, a score being ±1 for a segment, whose sign rounding may turn;
‖difference of the two parameter movements‖ over the norm of one of them."""


def entry(value: float, tolerance: float) -> dict[str, Any]:
    """One line of the report."""
    return {"value": value, "tolerance": tolerance, "ok": bool(value <= tolerance)}


def check_equality(profile: Profile, models: Path) -> dict[str, dict[str, Any]]:
    """Run both sides on the same weights, prompts and responses.

    Args:
        profile: which models; batch sizes are replaced by small ones.
        models: directory of the profile's reward models, written here where they are missing.

    Returns:
        `{name: {"value", "tolerance", "ok"}}`, and of `updated_parameters` in fp32 `where`, the name of the parameter.
    """
    sizes: dict[str, Any] = {
        "prompts": profile.equal_prompts,
        "samples": profile.equal_samples,
        "epochs": 1,
        "micro_batch_prompts": 1,
    }
    small = _smooth(replace(profile, **sizes, rounds=1, warmup=0))
    found = _compare(replace(small, precision="fp32"), models)
    if profile.precision == "bf16":
        found |= _compare(small, models)
    return found


def _smooth(profile: Profile) -> Profile:
    """The profile with GELU where a T5 has ReLU.

    A ReLU whose input is nearly 0 is open on one side and shut on the other by rounding alone: of half a billion inputs
    some hundreds, which makes the gradients of T5-large differ by 3e-4 of their norm, however exact both sides are (in
    fp64, weights changed by 1e-6 move ReLU's gradient by 6e-4 and GELU's by 5e-6).
    """
    shapes = ((name, getattr(profile, name)) for name in ("policy", "value"))
    return replace(profile, **{name: replace(s, activation="gelu") for name, s in shapes if _is_t5(s)})


def _is_t5(shape: Any) -> bool:
    return isinstance(shape, T5Shape) and not shape.gated


def _compare(profile: Profile, models: Path) -> dict[str, dict[str, Any]]:
    workload = Workload(profile, models)
    with tempfile.TemporaryDirectory() as run:
        ours, plain = Ours(workload, "spread", Path(run), ADAM), plain_side(workload, "spread", ADAM)
        found = {}
        if profile.precision == "fp32":
            found["greedy_tokens"] = entry(_greedy(ours, plain), 0)
        before = {name: p.detach().clone() for name, p in plain.trained.items()}
        ours.step()  # engine, rewards, scoring and one update
        drawn = _as_drawn(plain, ours.rollout)
        rows = slice(0, len(drawn.prompts))
        with torch.no_grad():
            teacher = plain.policy_logprobs(plain.policy, drawn, rows)[0]
        logprobs = (ours.rollout.logprobs - teacher).abs()
        rewards, given = _rewards(ours, plain)
        # In bf16 a segment near the border may change sides; the update is then compared on our rewards.
        plain.learn_from(drawn, PhaseTimer(workload.device), given if profile.precision == "bf16" else None)
        largest, where, relative = _parameters(ours, plain, before)
    if profile.precision == "bf16":
        mean = float(logprobs.sum() / drawn.mask.sum())
        return {
            "bf16_mean_decode_logprobs": entry(mean, BF16_TOLERANCE["logprobs"]),
            "bf16_mean_reward_scores": entry(sum(rewards) / len(rewards), BF16_TOLERANCE["rewards"]),
            "bf16_relative_update": entry(relative, BF16_TOLERANCE["update"]),
        }
    tolerance = FP32_TOLERANCE[profile.device]
    return {
        **found,
        "decode_logprobs": entry(float(logprobs.max()), tolerance),
        "reward_scores": entry(max(rewards), tolerance),
        "updated_parameters": {**entry(largest, tolerance), "where": where},
        "relative_update": entry(relative, 10 * tolerance),
    }


def _greedy(ours: Ours, plain: Plain) -> int:
    """Greedy response tokens of the engine that differ from those of transformers' `generate`."""
    memory = ours.engine.encode(plain.data)
    rollout = ours.engine.decode(memory, [Greedy()], max_new_tokens=plain.profile.new_tokens)
    theirs = plain.generate(plain.data, do_sample=False)
    different = 0
    for row, mask, other in zip(rollout.response_ids, rollout.response_mask, theirs, strict=True):
        mine, other_ids = row[mask.bool()].tolist(), other.tolist()
        ends = [i + 1 for i, token in enumerate(other_ids) if token in plain.ends]
        other_ids = other_ids[: ends[0] if ends else None]
        pairs = zip(mine, other_ids, strict=False)
        different += sum(a != b for a, b in pairs) + abs(len(mine) - len(other_ids))
    return different


def _as_drawn(plain: Plain, rollout: Rollout) -> Drawn:
    return plain.as_drawn(rollout.row_prompts(), rollout.response_ids, rollout.response_mask, rollout.texts)


def _rewards(ours: Ours, plain: Plain) -> tuple[list[float], Tensor]:
    """Differences of the scores of all segments and responses (infinite where segments differ); our token rewards."""
    rollout, composer = ours.rollout, ours.trainer.composer
    prompts, texts = rollout.row_prompts(), rollout.texts
    with plain.autocast():
        mine = composer.score(prompts, texts)
        theirs = {name: plain.rewards.score(name, prompts, texts) for name in COMPONENTS}
    differences: list[float] = []
    for name, rows in theirs.items():
        for a, b in zip(mine[name].values, rows, strict=True):
            differences += [abs(x - y) for x, y in zip(a, b, strict=True)] if len(a) == len(b) else [float("inf")]
    return differences, composer.compose(rollout, mine, train=False).total


def _parameters(ours: Ours, plain: Plain, before: dict[str, Tensor]) -> tuple[float, str, float]:
    """What one update did to all parameters on both sides.

    Returns:
        (largest difference of a parameter, its name, ‖difference‖ / ‖plain movement‖).
    """
    mine = {f"policy.{name}": p for name, p in ours.trainer.models.policy.model.named_parameters()}
    value = ours.trainer.models.value
    assert isinstance(value, SeparateValueModel)
    mine |= {f"value.{name}": p for name, p in value.backbone.named_parameters()}
    mine |= {f"head.{name}": p for name, p in value.head.named_parameters()}
    assert set(mine) == set(plain.trained), "the two sides train different parameters"
    largest, difference, movement = (0.0, ""), 0.0, 0.0
    with torch.no_grad():
        for name, theirs in plain.trained.items():
            delta = mine[name] - theirs
            largest = max(largest, (float(delta.abs().max()), name))
            difference += float(delta.double().square().sum())
            movement += float((theirs - before[name]).double().square().sum())
    return *largest, (difference / max(movement, 1e-300)) ** 0.5
