"""The same numbers on the device as on a CPU: every family, both kinds of reward model.

In fp32 within a tolerance; under bf16 autocast the difference is stated. Knows policies, engines and scorers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.equality import FP32_TOLERANCE, entry
from benchmarks.gpu.families import SETTINGS, family_model
from benchmarks.gpu.items import Item, Result, Setting
from benchmarks.profiles import LongformerShape
from benchmarks.workload import (
    COMPONENTS,
    EOS,
    FIRST_WORD,
    PAD,
    PlainSegmenter,
    build_tokenizer,
    make_prompts,
    reward_tokenizer,
    word,
    write_reward_model,
)
from finegrained_rlhf.core.records import Prompt, Rollout, Sample
from finegrained_rlhf.models.families.causal import CAUSAL_FAMILIES
from finegrained_rlhf.models.policy import CausalPolicy, Policy, Seq2SeqPolicy
from finegrained_rlhf.rewards.composition import RewardComposer, RewardConfig
from finegrained_rlhf.rollout.select import make_engine
from reward_models.encoders.models import new_reward_model
from reward_models.record import RewardModelRecord
from reward_models.scorers import SegmentScorer, SequenceScorer

VOCABULARY = 512
LENGTHS = (40, 57, 33)
SAMPLES, TOKENS = 3, 24
BF16_LOGPROB, BF16_GRADIENT = 0.1, 0.25
"""What bf16 may change: nats a token, and the share of the gradient."""
LONGFORMER = LongformerShape(128, 192, 2, 4, 32, 256)


def equality_items() -> list[Item]:
    """One a family, and one a backbone of reward models."""
    families = [Item("equality", family, _family(family), 90) for family in SETTINGS]
    return [*families, *(Item("equality", f"rewards_{name}", _rewards(name), 90) for name in ("longformer", "llama"))]


def _family(family: str) -> Callable[[Setting], Result]:
    return lambda setting: compare_family(family, setting.device)


def _rewards(backbone: str) -> Callable[[Setting], Result]:
    return lambda setting: compare_rewards(backbone, setting.device, setting.scratch)


def open_policy(model: Any) -> Policy:
    """A policy around a small model."""
    build = CausalPolicy if model.config.model_type in CAUSAL_FAMILIES else Seq2SeqPolicy
    return build(model, build_tokenizer(VOCABULARY)).eval()


def compare_family(family: str, device: torch.device) -> Result:
    """Tokens, log-probabilities and gradients of one family on the device and on the CPU.

    Returns:
        `equal`: `tokens` (drawn ones that differ), `logprobs` (largest difference in nats), `gradient` (‖difference‖
        over ‖gradient‖), `unshared` (log-probabilities with every prompt computed once a response), `engine` (the
        engine's log-probabilities against the update's, both on the device), `recorded` (see `recorded_and_called`),
        and under bf16 autocast `bf16_engine` (the mean), `bf16_recorded`, the mean |Δ log-probability| to fp32 and the
        gradient's relative difference.
    """
    model = family_model(family, VOCABULARY, PAD, EOS)
    here, there = open_policy(model), open_policy(copy.deepcopy(model).to(device))
    asked = make_prompts(here.tokenizer, VOCABULARY, LENGTHS, 0)
    rollout = draw(here, asked)
    exact, gradient = score(here, rollout)
    found, its_gradient = score(there, rollout)
    apart, _ = score(there, rollout, shared=False)
    tolerance = FP32_TOLERANCE["cuda" if device.type == "cuda" else "cpu"]
    drawn = draw(there, asked)
    equal = {
        "tokens": entry(differing(rollout, drawn), 0),
        "logprobs": entry(float((found - exact).abs().max()), tolerance),
        "gradient": entry(relative(its_gradient, gradient), 10 * tolerance),
        "unshared": entry(float((apart - found).abs().max()), tolerance),
        "engine": entry(float(engine_gaps(there, drawn).max()), 2 * tolerance),  # other sums: 1.2e-5 with AVX-512
    }
    equal |= recorded_and_called(there, asked, "recorded")
    with torch.autocast(device.type, dtype=torch.bfloat16):
        equal["bf16_engine"] = entry(float(engine_gaps(there, draw(there, asked)).mean()), BF16_LOGPROB)
        rounded, rounded_gradient = score(there, rollout)
        equal |= recorded_and_called(there, asked, "bf16_recorded")
    gaps = (rounded - exact).abs()
    equal["bf16_mean_logprob"] = entry(float(gaps.sum() / rollout.response_mask.sum()), BF16_LOGPROB)
    equal["bf16_gradient"] = entry(relative(rounded_gradient, gradient), BF16_GRADIENT)
    return {"equal": equal, "bf16_largest_logprob": float(gaps.max())}


def engine_gaps(policy: Policy, rollout: Rollout) -> Tensor:
    """|log-probability of the engine − that of the update| of every response token of what a policy drew, in nats."""
    scored, _ = score(policy, rollout)
    return (rollout.logprobs - scored).abs()[rollout.response_mask.bool()]


def recorded_and_called(policy: Policy, asked: Sequence[Prompt], name: str) -> dict[str, Any]:
    """Tokens of a recorded step that differ from those of the same step called; nothing where none is recorded."""
    engine: Any = make_engine(policy)
    recorded = [draw(policy, asked, seed, engine) for seed in (0, 1)]  # the second replays
    if not getattr(engine, "_recorded", None):
        return {}
    plain: Any = make_engine(policy)
    plain._records = lambda: False
    called = [draw(policy, asked, seed, plain) for seed in (0, 1)]
    return {name: entry(sum(map(differing, recorded, called)), 0)}


def draw(policy: Policy, asked: Sequence[Prompt], seed: int = 0, engine: Any = None) -> Rollout:
    """Responses of the policy's engine, by noise that no device changes; on the CPU."""
    engine = engine or make_engine(policy)
    rollout = engine.decode(engine.encode(asked), [Sample(SAMPLES)], max_new_tokens=TOKENS, seed=seed, step=1)
    names = ("prompt_ids", "prompt_mask", "prompt_index", "response_ids", "response_mask", "logprobs")
    return replace(rollout, **{name: getattr(rollout, name).cpu() for name in names})


def differing(one: Rollout, other: Rollout) -> int:
    """Response tokens of two rollouts of the same prompts that are not the same."""
    width = max(one.response_ids.shape[1], other.response_ids.shape[1])
    rows = [
        torch.nn.functional.pad(r.response_ids * r.response_mask, (0, width - r.response_ids.shape[1]))
        for r in (one, other)
    ]
    return int((rows[0] != rows[1]).sum())


def score(policy: Policy, rollout: Rollout, shared: bool = True) -> tuple[Tensor, dict[str, Tensor]]:
    """Log-probabilities fp32 [R, T] of a rollout's tokens, and the gradient of a fixed sum of them; on the CPU.

    Args:
        policy: on any device.
        rollout: on the CPU.
        shared: whether the responses to a prompt are computed together.
    """
    policy.model.zero_grad(set_to_none=True)
    prompts, index = (rollout.prompts, rollout.prompt_index) if shared else (rollout.row_prompts(), None)
    index = torch.arange(len(prompts)) if index is None else index
    ids, mask = rollout.response_ids.to(policy.device), rollout.response_mask.to(policy.device)
    logprobs = policy.logprobs(policy.encode(prompts), index, ids, mask).logprobs
    weights = torch.randn(ids.shape, generator=torch.Generator().manual_seed(0)).to(policy.device)
    ((logprobs * weights).sum() / mask.sum()).backward()
    gradient = {
        name: p.grad.detach().double().cpu() for name, p in policy.model.named_parameters() if p.grad is not None
    }
    return logprobs.detach().cpu(), gradient


def relative(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """‖one − other‖ / ‖other‖ over all parameters."""
    difference = sum(float((one[name] - gradient).square().sum()) for name, gradient in other.items())
    size = sum(float(gradient.square().sum()) for gradient in other.values())
    return (difference / max(size, 1e-300)) ** 0.5


def compare_rewards(backbone: str, device: torch.device, directory: Path) -> Result:
    """Scores of three reward models, two of segments and one of responses, on the device and on the CPU."""
    for kind in COMPONENTS.values():
        path = directory / kind
        if backbone == "longformer":
            write_reward_model(LONGFORMER, VOCABULARY, kind, path)
            continue
        base = directory / "base"
        family_model("llama", VOCABULARY, PAD, EOS).save_pretrained(base)
        reward_tokenizer(VOCABULARY).save_pretrained(base)
        torch.manual_seed(1)
        moments: dict[str, Any] = {"mean": 0.0, "std": 1.0} if kind == "completeness" else {}
        new_reward_model(base, RewardModelRecord(kind, "none", 256, **moments)).save(path)
    random = np.random.default_rng(0)
    texts = [" ".join(map(word, random.integers(FIRST_WORD, VOCABULARY, n).tolist())) for n in (30, 17, 45)]
    asked = make_prompts(build_tokenizer(VOCABULARY), VOCABULARY, LENGTHS, 0)
    exact = _scores(directory, torch.device("cpu"), asked, texts)
    found, rounded = _scores(directory, device, asked, texts), _scores(directory, device, asked, texts, bf16=True)
    tolerance = FP32_TOLERANCE["cuda" if device.type == "cuda" else "cpu"]
    gaps = {name: (exact[name] - found[name]).abs() for name in exact}
    under_bf16 = {f"bf16_{name}": (exact[name] - rounded[name]).abs().mean() for name in exact}
    return {
        "equal": {
            **{name: entry(float(gap.max()), tolerance) for name, gap in gaps.items()},
            **{name: entry(float(gap), BF16_LOGPROB) for name, gap in under_bf16.items()},
        },
    }


@torch.no_grad()
def _scores(
    directory: Path, device: torch.device, asked: Sequence[Prompt], texts: Sequence[str], bf16: bool = False
) -> dict[str, Tensor]:
    """The numbers behind the scores of each model, in order: logits of segments, raw scores of responses."""
    segmenter, found = PlainSegmenter(), {}
    for name, kind in COMPONENTS.items():
        whole, path = kind == "completeness", str(directory / kind)
        scorer: Any = SequenceScorer(path) if whole else SegmentScorer(path, segmenter=segmenter)
        composer = RewardComposer(RewardConfig({name: scorer}, {name: 1.0}))
        composer.setup(device)
        numbers: list[Tensor] = []
        method = "answer_scores" if whole else "segment_logits"
        compute = getattr(scorer.model, method)

        def kept(batch: Any, compute: Any = compute, numbers: list[Tensor] = numbers) -> Tensor:
            numbers.append(compute(batch))
            return numbers[-1]

        setattr(scorer.model, method, kept)
        with torch.autocast(device.type, dtype=torch.bfloat16) if bf16 else nullcontext():
            composer.score(list(asked), list(texts))
        found[name] = torch.cat([tensor.float().cpu().flatten() for tensor in numbers])
    return found
