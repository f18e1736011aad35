"""Responses of another policy than is trained: weights, gradients, metrics and samples against the formula written out,
and the same run once more."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from families_toy import family_policy
from ppo_toy import make_trainer, run_together, save_checkpoint
from rl_toy import needs_continuous, policy, prompts
from seldom import seldom
from torch import Tensor

from finegrained_rlhf.core.records import Experience, Greedy, Prompt, Rollout
from finegrained_rlhf.models.loading import open_policy
from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.models.weights.saving import save_policy
from finegrained_rlhf.rl.importance import ImportanceMode
from finegrained_rlhf.rollout import make_engine
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.ppo import GroupAdvantages
from finegrained_rlhf.training.ppo.config import KLConfig
from finegrained_rlhf.training.ppo.trainer import PPOTrainer

pytestmark = needs_continuous
CAP = 1.2


def moved(owner: Policy, size: float = 0.03) -> Policy:
    """A policy nearly this one: what an engine with older weights draws from."""
    other = copy.deepcopy(owner)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in other.model.parameters():
            parameter.add_(size * torch.randn(parameter.shape, generator=generator))
    return other


def weighed_trainer(path: Path, owner: Policy, mode: ImportanceMode = "token_truncate", **options: Any) -> PPOTrainer:
    """Continuous batching draws from a policy that has been moved."""
    drawn = {"engine": "continuous", "importance_cap": CAP, "importance_mode": mode}
    engine = make_engine(moved(owner), "continuous")
    return make_trainer(path, "llama", owner=owner, engine=engine, drawn=drawn, **options)


def log_probabilities(ours: Policy, prompt: Prompt, ids: Tensor) -> Tensor:
    """Of a response [t], by transformers' whole model."""
    whole = torch.cat([torch.tensor(prompt.input_ids), ids])
    logits = ours.model(input_ids=whole[None]).logits[0, len(prompt.input_ids) - 1 : -1]
    return logits.log_softmax(dim=-1)[torch.arange(len(ids)), ids]


def written_out(rollout: Rollout, ours: Policy, mode: str) -> tuple[list[list[float]], list[float]]:
    """The weights of each response's tokens, and all ratios before the cap."""
    sampler, found, before = moved(ours), [], []
    for row, prompt in enumerate(rollout.row_prompts()):
        ids = rollout.response_ids[row, : int(rollout.response_mask[row].sum())]
        with torch.no_grad():
            gaps = (log_probabilities(ours, prompt, ids) - log_probabilities(sampler, prompt, ids)).tolist()
        ratios = [math.exp(sum(gaps))] * len(gaps) if mode.startswith("sequence") else [math.exp(gap) for gap in gaps]
        before += ratios
        found.append([x if x <= CAP else CAP if mode.endswith("truncate") else 0.0 for x in ratios])
    return found, before


GROUP: dict[str, Any] = {"algorithm": GroupAdvantages(), "prompts_per_step": 2}
CASES: list[tuple[ImportanceMode, dict[str, Any]]] = [
    ("token_truncate", {}),
    ("token_mask", {"algorithm": GroupAdvantages(), "loss_average": "sequence"}),
    ("sequence_truncate", {"algorithm": GroupAdvantages(), "kl": KLConfig("loss", "k1", beta=0.5)}),
]


@pytest.mark.parametrize(("mode", "options"), seldom(CASES, [CASES[2]]))
def test_gradient_and_metrics_are_those_of_the_formula(
    tmp_path: Path, mode: ImportanceMode, options: dict[str, Any]
) -> None:
    """A KL inside the loss is the trained policy's own and is not weighed."""
    owner = policy("llama")
    trainer = weighed_trainer(tmp_path, owner, mode, epochs=1, **options)
    seen: list[Experience] = []
    taken: dict[str, Tensor] = {}
    run = trainer._update.run

    def keep(step: int) -> float:
        for name, parameter in owner.model.named_parameters():
            taken[name] = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        return 0.0

    def watched(step: int, experience: Experience, *rest: Any) -> None:
        seen.append(experience)
        run(step, experience, *rest)

    trainer.models.optimizer.step = keep
    trainer._update.run = watched  # type: ignore[method-assign]
    metrics = trainer.train_step(1)
    owner.model.zero_grad()
    (experience,) = seen
    rollout = experience.rollout
    expected, ratios = written_out(rollout, owner, mode)
    assert experience.importance is not None
    tokens, rows, loss = len(ratios), len(expected), torch.zeros(())
    for row, (prompt, weights) in enumerate(zip(rollout.row_prompts(), expected, strict=True)):
        length = len(weights)
        found = experience.importance.weights[row]
        torch.testing.assert_close(found[:length], torch.tensor(weights), atol=1e-5, rtol=1e-5)
        assert bool((found[length:] == 1).all())
        logprobs = log_probabilities(owner, prompt, rollout.response_ids[row, :length])
        scale = 1 / tokens if options.get("loss_average") is None else 1 / (rows * length)
        gain = torch.tensor(weights) * experience.advantages[row, :length]
        loss = loss - scale * (gain * (logprobs - logprobs.detach()).exp()).sum()
        if "kl" in options:
            loss = loss + scale * 0.5 * logprobs.sum()
    loss.backward()
    for name, parameter in owner.model.named_parameters():
        largest = max(1.0, float(taken[name].abs().max()))
        torch.testing.assert_close(taken[name], parameter.grad, atol=1e-5 * largest, rtol=0, msg=name)
    assert max(float(gradient.abs().max()) for gradient in taken.values()) > 1e-2
    capped = sum(ratio > CAP for ratio in ratios)
    assert 0 < capped < tokens
    assert metrics["importance/mean"] == pytest.approx(sum(map(sum, expected)) / tokens, abs=1e-5)
    assert metrics["importance/max"] == pytest.approx(max(ratios), rel=1e-5)
    assert metrics["importance/capped"] == pytest.approx(capped / tokens)
    assert metrics["importance/gap"] > 0.01 and trainer._scorer.from_decode is False
    kept = [json.loads(line) for line in trainer.run.samples_path(1).read_text().splitlines()]
    assert [sample["tokens"]["importance"] for sample in kept] == [pytest.approx(w, abs=1e-5) for w in expected]


def test_where_sampler_and_trainer_agree_nothing_is_weighed(tmp_path: Path) -> None:
    drawn = {"engine": "continuous", "importance_cap": CAP}
    trainer = make_trainer(tmp_path / "a", "llama", drawn=drawn, epochs=1)
    metrics = trainer.train_step(1)
    assert trainer._scorer.from_decode is True and not any(name.startswith("importance") for name in metrics)
    weighed = make_trainer(tmp_path / "b", "llama", drawn=drawn, epochs=1, logprobs="update").train_step(1)
    assert weighed["importance/mean"] == pytest.approx(1.0, abs=1e-5) and weighed["importance/capped"] == 0.0
    assert weighed["importance/max"] == pytest.approx(1.0, abs=1e-5)
    plain = make_trainer(tmp_path / "c", "llama", epochs=1).train_step(1)
    for other in (metrics, weighed):  # the draws are those of our own decoder, and so is the step
        shared = {name: x for name, x in plain.items() if not name.startswith("time/")}
        assert {name: other[name] for name in shared} == pytest.approx(shared, abs=1e-4)


def test_a_family_without_a_decoder_of_ours_is_trained(tmp_path: Path) -> None:
    owner = family_policy("qwen3_moe", use_sliding_window=False, layer_types=None)
    drawn = {"engine": "continuous", "importance_cap": CAP}
    trainer = make_trainer(tmp_path, "llama", owner=owner, shared=True, drawn=drawn, epochs=1)
    assert math.isfinite(trainer.train_step(1)["loss/policy"])


def steps(trainer: PPOTrainer, first: int, last: int) -> list[dict[str, float]]:
    done = [trainer.train_step(step) for step in range(first, last + 1)]
    return [{name: x for name, x in metrics.items() if not name.startswith("time/")} for metrics in done]


@pytest.mark.slow
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path) -> None:
    """The sampler stands still here, so that a weight that is not the same would show."""
    save_policy(policy("llama"), tmp_path / "start")
    engine = make_engine(moved(policy("llama")), "continuous")

    def fresh(name: str) -> PPOTrainer:
        drawn = {"engine": "continuous", "importance_cap": CAP}
        owner = open_policy(tmp_path / "start")
        return make_trainer(
            tmp_path / name, "llama", owner=owner, engine=engine, drawn=drawn, lr=5e-3, epochs=1, **GROUP
        )

    whole, stopped, resumed = fresh("a"), fresh("b"), fresh("b")
    expected = steps(whole, 1, 2)
    steps(stopped, 1, 1)
    checkpoint = save_checkpoint(stopped, tmp_path / "checkpoint")
    torch.manual_seed(99)  # another process has other generators
    resumed.load_state(checkpoint)
    assert steps(resumed, 2, 2) == expected[1:]
    for one, other in zip(whole.models._trained.parameters(), resumed.models._trained.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.slow
def test_two_processes_do_what_one_does(tmp_path: Path) -> None:
    """One prompt a step: one of the two processes has none."""
    owners = [policy("llama") for _ in range(3)]

    def work(processes: Processes) -> list[dict[str, float]]:
        path = tmp_path / f"{processes.count}_{processes.rank}"
        return steps(weighed_trainer(path, owners.pop(), processes=processes, prompts_per_step=1, epochs=1), 1, 2)

    expected = work(Processes())
    for metrics in run_together(2, work):
        for one, other in zip(expected, metrics, strict=True):
            assert other.pop("processes") == 2
            assert other == pytest.approx({k: v for k, v in one.items() if k != "processes"}, abs=2e-4)


@pytest.mark.slow
def test_validation_weighs_nothing(tmp_path: Path) -> None:
    trainer = weighed_trainer(tmp_path, policy("llama"), validation=2)
    trainer.validate(0)
    kept = trainer.run.validation_samples_path(0).read_text().splitlines()
    assert len(kept) == 2 and all("importance" not in json.loads(line)["tokens"] for line in kept)
    assert trainer.sampler.draw(prompts("llama", 1), [Greedy()], 1).sampler_logprobs is None
