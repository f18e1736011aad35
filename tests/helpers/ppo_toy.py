"""A PPO trainer over tiny models with a scorer that anyone can check by eye."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rl_toy import CAUSAL, policy, prompts
from torch import Tensor, nn

from finegrained_rlhf.core.records import Prompt, SegmentScores
from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.models.value import SeparateValueModel, SharedTrunkValueModel, ValueModel
from finegrained_rlhf.rewards import ComponentConfig, RewardComposer, RewardConfig
from finegrained_rlhf.rollout import RolloutConfig, RolloutEngine, make_engine
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.ppo.advantages import AdvantageEstimator
from finegrained_rlhf.training.ppo.config import KLConfig, PPOConfig
from finegrained_rlhf.training.ppo.parts import PPOData, PPOModels, PPOParts
from finegrained_rlhf.training.ppo.trainer import PPOTrainer

_GENERATOR = threading.Lock()


class WordScorer:
    """Each word is a segment: +1 for `good`, −0.2 for any other. Words are what white space separates."""

    def __init__(self, good: str = "red") -> None:
        self.good = good

    def setup(self, device: torch.device) -> None:
        """Nothing to load."""

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        spans, values = [], []
        for text in responses:
            found, start = [], 0
            for word in text.split():
                start = text.index(word, start)
                found.append((start, start + len(word)))
                start += len(word)
            spans.append(tuple(found))
            values.append(tuple(1.0 if text[a:b] == self.good else -0.2 for a, b in found))
        return SegmentScores(spans, values)


class LengthScorer:
    """One value a response: minus a tenth of its characters."""

    def setup(self, device: torch.device) -> None:
        """Nothing to load."""

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        return SegmentScores(
            [((0, len(r)),) for r in responses], [(-len(r) / 10,) for r in responses], whole_response=True
        )


def value_model(owner: Policy, kind: str, shared: bool = False, heads: int = 1) -> ValueModel:
    """A separate value model of the policy's architecture, or a head on its trunk."""
    with _GENERATOR:  # threads share the global generator
        torch.manual_seed(5)
        if shared:
            return SharedTrunkValueModel(owner, heads)
        source = policy(kind, seed=6).model
        if kind in CAUSAL:
            return SeparateValueModel(source.base_model, owner, heads).eval()
        source.lm_head = nn.Identity()
        return SeparateValueModel(source, owner, heads).eval()


def halved(asked: Sequence[Prompt]) -> list[Prompt]:
    """The same prompts in two pieces each, those of one token in one."""
    found = []
    for prompt in asked:
        half = len(prompt.input_ids) // 2
        found.append(replace(prompt, pieces=(half, len(prompt.input_ids) - half) if half else ()))
    return found


def make_trainer(
    path: Path,
    kind: str = "t5",
    *,
    owner: Policy | None = None,
    shared: bool = False,
    processes: Processes | None = None,
    scorers: dict[str, Any] | None = None,
    settings: dict[str, ComponentConfig] | None = None,
    prompts_per_step: int = 3,
    samples: int = 4,
    max_new_tokens: int = 6,
    temperature: float = 1.0,
    lr: float = 1e-3,
    training_prompts: int = 5,
    validation: int = 0,
    seed: int = 0,
    score_sampling: bool = False,
    logprobs: Any = "auto",
    algorithm: AdvantageEstimator | None = None,
    engine: RolloutEngine | None = None,
    drawn: Mapping[str, Any] | None = None,
    reward: Mapping[str, Any] | None = None,
    in_pieces: bool = False,
    **ppo: Any,
) -> PPOTrainer:
    """A trainer whose every part is small; `ppo` are fields of PPOConfig, `drawn` more of RolloutConfig, `reward` of
    RewardConfig. With `in_pieces` every prompt is encoded in two parts.
    """
    owner = policy(kind) if owner is None else owner
    processes = processes or Processes()
    scorers = scorers or {"words": WordScorer(), "length": LengthScorer()}
    weights = {name: 1.0 if name == "words" else 0.5 for name in scorers}
    rollout = RolloutConfig(
        prompts_per_step,
        samples,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        **{"top_k": 0, **(drawn or {})},
        logprobs=logprobs,
    )
    if score_sampling:
        owner.scored = rollout.decoding()
    optimizer = OptimizerConfig(lr=lr, eps=1e-5, schedule="constant")
    config = PPOConfig(**{"kl": KLConfig(beta=0.05), "micro_batch_prompts": 2, **ppo})
    heads = 1 if algorithm is None else algorithm.value_heads(list(scorers), config)
    values = value_model(owner, kind, shared, heads) if heads else None
    engine = make_engine(owner, rollout.engine, draft=rollout.draft) if engine is None else engine
    asked = prompts(kind, training_prompts), prompts(kind, validation)
    parts = PPOParts(
        PPOModels(owner, values, optimizer, 100, processes),
        engine,
        RewardComposer(RewardConfig(scorers, weights, settings or {}, **(reward or {})), processes.sum_, owner.eos_ids),
        PPOData(*(halved(found) if in_pieces else found for found in asked)),
        processes,
        RunDirectory(path).create(),
    )
    return PPOTrainer(parts, config, rollout, seed=seed, algorithm=algorithm)


class ThreadProcesses(Processes):
    """One of several threads that stand for processes; collective calls meet at a barrier."""

    def __init__(self, rank: int, count: int, meet: Callable[[int, Any], list[Any]]) -> None:
        self.rank, self.count, self._meet = rank, count, meet
        self.device, self.precision, self.fused, self.compiled = torch.device("cpu"), "fp32", False, False

    def sum_(self, tensor: Tensor) -> Tensor:
        parts = self._meet(self.rank, tensor.clone())
        return tensor.copy_(torch.stack(parts).sum(dim=0))

    def gather_objects(self, items: Sequence[Any]) -> list[Any]:
        return [item for part in self._meet(self.rank, list(items)) for item in part]

    def all_reduce_gradients(self, parameters: Any) -> None:
        for parameter in parameters:
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad = torch.stack(self._meet(self.rank, gradient.clone())).sum(dim=0)


def run_together(count: int, work: Callable[[Processes], Any]) -> list[Any]:
    """Run `work` once a process and return the results in rank order."""
    barrier, box = threading.Barrier(count, timeout=60), [None] * count
    results: list[Any] = [None] * count
    errors: list[BaseException] = []

    def meet(rank: int, value: Any) -> list[Any]:
        box[rank] = value
        barrier.wait()
        values = list(box)
        barrier.wait()
        return values

    def target(rank: int) -> None:
        try:
            results[rank] = work(ThreadProcesses(rank, count, meet))
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=target, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise next((e for e in errors if not isinstance(e, threading.BrokenBarrierError)), errors[0])
    return results


def save_checkpoint(trainer: Any, directory: Path) -> Path:
    """What a run's loop saves of a trainer: the policy as exported, and its state."""
    (directory / "policy").mkdir(parents=True)
    trainer.model_to_save()(directory / "policy")
    trainer.state_to_save()(directory)
    return directory


def assert_alike(
    one: tuple[list[dict[str, float]], dict[str, Tensor]], several: Sequence[tuple[list[dict[str, float]], Any]]
) -> None:
    """Metrics of steps and parameters of each of several processes are those of one."""
    expected, parameters = one
    for metrics, moved in several:
        for alone, together in zip(expected, metrics, strict=True):
            assert together["processes"] == len(several) and alone["processes"] == 1
            same = {**alone, "processes": len(several)}
            norm = same.pop("gradient_norm", 0.0)  # of a later step: Adam has made more of rounding
            assert together.pop("gradient_norm", 0.0) == pytest.approx(norm, rel=1e-3)
            assert together == pytest.approx(same, abs=2e-4, rel=1e-4)
        for key, parameter in parameters.items():
            torch.testing.assert_close(moved[key], parameter, atol=5e-5, rtol=0)
