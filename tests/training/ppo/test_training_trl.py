"""Advantages and losses against TRL's, on the numbers that it computed itself (tests/golden/trl)."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
import yaml
from rl_toy import prompts
from script_runs import ROOT
from torch import Tensor

from finegrained_rlhf.core.records import ComponentTrace, Experience, RewardTrace, Rollout, Sample, SegmentScores
from finegrained_rlhf.inference.measure import StepMetrics
from finegrained_rlhf.rl.importance import ImportanceMode
from finegrained_rlhf.rollout import RolloutConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.micro_batches import MicroBatch, micro_batches
from finegrained_rlhf.training.ppo import GroupAdvantages, update
from finegrained_rlhf.training.ppo.config import EntropyConfig, KLConfig, PPOConfig
from finegrained_rlhf.training.ppo.experience import make_experience

CASE = json.loads((ROOT / "tests/golden/trl/case.json").read_text())
IMPORTANCE = json.loads((ROOT / "tests/golden/trl/importance.json").read_text())
GROUPS = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])


def rollout(mask: Tensor, logprobs: Tensor) -> Rollout:
    none = torch.zeros_like(GROUPS)
    return Rollout(
        prompts(count=2),
        none[:2, None],
        none[:2, None],
        GROUPS,
        none,
        none,
        (Sample(4),),
        mask,
        mask,
        logprobs,
        [""] * 8,
        [()] * 8,
    )


def sampled(name: str) -> tuple[Rollout, RewardTrace, Tensor, Tensor]:
    """The responses of a variant, two components of one number a response, reference log-probabilities, advantages."""
    given = {key: torch.tensor(value) for key, value in CASE[name]["sampled"].items()}
    mask = given["mask"].long()
    last = mask.sum(dim=1) - 1
    parts = {}
    for k, weight in enumerate(CASE["weights"]):
        values = [(value,) for value in given["rewards"][:, k].tolist()]
        raw = torch.zeros(mask.shape).scatter(1, last[:, None], given["rewards"][:, k : k + 1])
        scores = SegmentScores([((0, 1),)] * 8, values, whole_response=True)
        tokens = [(token,) for token in last.tolist()]
        parts[f"c{k}"] = ComponentTrace(scores, weight, raw, raw, weight * raw, values, tokens)
    total = parts["c0"].weighted + parts["c1"].weighted
    reference = given.get("reference", given["logps"])
    return rollout(mask, given["logps"]), RewardTrace(parts, total), reference, given["advantages"]


def advantages_of(name: str, algorithm: GroupAdvantages, config: PPOConfig, beta: float = 0.0) -> tuple[Tensor, Tensor]:
    """Ours and TRL's, one number a response."""
    responses, trace, reference, theirs = sampled(name)
    made = make_experience(
        responses, trace, reference, None, beta=beta, config=config, reduce=lambda x: x, algorithm=algorithm
    )
    mask = responses.response_mask
    assert torch.equal(made.advantages, made.advantages[:, :1] * mask)  # all tokens of a response have one
    return made.advantages[:, 0], theirs


LOSS_KL = PPOConfig(kl=KLConfig(place="loss"))


def test_the_numbers_are_worth_comparing() -> None:
    lengths = {int(sum(row)) for name in ("grpo", "gdpo") for row in CASE[name]["sampled"]["mask"]}
    assert len(lengths) > 2
    kl = [
        x - y for x, y in zip(CASE["rloo"]["sampled"]["logps"][0], CASE["rloo"]["sampled"]["reference"][0], strict=True)
    ]
    assert max(map(abs, kl)) > 0.1


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [("grpo", GroupAdvantages("group_mean", "std")), ("dr_grpo", GroupAdvantages("group_mean"))],
)
def test_advantages_of_grpo(name: str, algorithm: GroupAdvantages) -> None:
    ours, theirs = advantages_of(name, algorithm, LOSS_KL)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def test_advantages_of_rloo_with_its_penalty_in_the_reward() -> None:
    beta = CASE["rloo"]["options"]["beta"]
    ours, theirs = advantages_of("rloo", GroupAdvantages(), PPOConfig(), beta)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    without, _ = advantages_of("rloo", GroupAdvantages(), LOSS_KL)
    assert float((without - theirs).abs().max()) > 1e-2


def test_advantages_of_gdpo() -> None:
    """TRL whitens by the sample deviation plus 1e-4, as in the group; we by the batch's, as PPO does."""
    algorithm = GroupAdvantages("group_mean", "std", by_component=True)
    plain, theirs = advantages_of("gdpo", algorithm, LOSS_KL)
    torch.testing.assert_close((plain - plain.mean()) / (plain.std() + 1e-4), theirs, atol=1e-5, rtol=0)
    white, _ = advantages_of("gdpo", GroupAdvantages("group_mean", "std", by_component=True, whiten=True), LOSS_KL)
    torch.testing.assert_close(white * (7 / 8) ** 0.5, theirs, atol=1e-3, rtol=0)


class _Still:
    """Stands for the policy, whose log-probabilities are given."""

    def train(self, mode: bool) -> None:
        """Nothing."""

    def modules(self) -> tuple[()]:
        """None."""
        return ()


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("grpo", {"loss_average": "sequence", "kl": KLConfig("loss", "k3")}),
        ("dr_grpo", {"loss_average": "constant"}),
        ("clip_higher", {"clip_upper": 0.28, "dual_clip": 1.5, "kl": KLConfig("loss", "k3")}),
        ("gdpo", {"loss_average": "sequence"}),
        ("gspo", {"loss_average": "sequence", "ratio": "sequence", "clip": 0.1, "clip_upper": 0.05}),
        ("gspo_by_token", {"ratio": "sequence", "clip": 0.05}),
        ("cispo", {"loss": "cispo", "clip": 1.0, "clip_upper": 0.25}),
        ("entropy", {"loss_average": "constant", "entropy": EntropyConfig(0.3)}),
    ],
)
def test_losses_and_their_gradients(name: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    given = {key: torch.tensor(value) for key, value in CASE[name]["loss"].items()}
    mask = given["completion_mask"].long()
    logps = given["logps"].clone().requires_grad_()
    responses = rollout(mask, given["old_per_token_logps"])
    zeros = torch.zeros_like(logps)
    reference = given.get("ref_per_token_logps", zeros)
    advantages = given["advantages"][:, None] * mask
    experience = Experience(responses, RewardTrace({}, zeros), reference, None, zeros, advantages, None)
    config = PPOConfig(epochs=1, **settings)
    beta = CASE[name]["options"].get("beta", 0.0)
    entropies = (given.get("entropies", zeros) * mask).requires_grad_()
    found = updated(experience, logps, config, CASE["longest"], monkeypatch, beta, entropies)
    assert logps.grad is not None
    torch.testing.assert_close(logps.grad, given["gradient"] * mask, atol=1e-6, rtol=1e-5)
    assert float(given["gradient"].abs().max()) > 1e-3
    assert found["clip_fraction/policy"] > 0.1
    loss = found["loss/policy"] + beta * found.get("loss/kl", 0.0)
    if "entropies" in given:
        assert entropies.grad is not None and float(entropies.grad.abs().max()) > 1e-3
        torch.testing.assert_close(entropies.grad, given["gradient_by_entropy"] * mask, atol=1e-7, rtol=1e-5)
        loss -= found["entropy_coefficient"] * found["entropy"]
    assert loss == pytest.approx(float(given["loss"]), abs=1e-5)


@pytest.mark.parametrize("name", ["gspo", "cispo"])
def test_a_preset_takes_the_loss_that_is_compared(name: str) -> None:
    """Only the clip differs: so small a policy moves further than those of the papers."""
    compared = {"gspo": {"ratio": "sequence"}, "cispo": {"loss": "cispo", "clip": 1.0}}[name]
    settings = yaml.safe_load((ROOT / f"conf/algorithm/{name}.yaml").read_text())["ppo"]
    assert {key: settings[key] for key in compared} == compared
    assert settings["kl"]["beta"] == CASE[name]["options"]["beta"] == 0.0


@pytest.mark.parametrize("mode", [mode for mode in get_args(ImportanceMode) if mode in IMPORTANCE])
def test_importance_weights_and_the_loss_they_multiply(mode: ImportanceMode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy has moved since it was sampled from, by an engine that was another one then already."""
    given = {key: torch.tensor(value) for key, value in IMPORTANCE[mode].items()}
    mask = given["completion_mask"].long()
    logps = given["logps"].clone().requires_grad_()
    responses = replace(rollout(mask, given["old_per_token_logps"]), sampler_logprobs=given["sampling_per_token_logps"])
    settings = RolloutConfig(2, importance_cap=IMPORTANCE["cap"], importance_mode=mode)
    importance = settings.importance(responses)
    assert importance is not None
    theirs = given["importance_sampling_ratio"].expand_as(logps)
    torch.testing.assert_close(importance.weights * mask, theirs * mask, atol=1e-5, rtol=1e-5)
    zeros = torch.zeros_like(logps)
    advantages = given["advantages"][:, None] * mask
    parts = (responses, RewardTrace({}, zeros), zeros, None, zeros, advantages, None)
    experience = Experience(*parts, importance=importance)
    found = updated(experience, logps, PPOConfig(epochs=1), 1, monkeypatch)
    assert logps.grad is not None
    torch.testing.assert_close(logps.grad, given["gradient"] * mask, atol=1e-6, rtol=1e-5)
    assert found["loss/policy"] == pytest.approx(float(given["loss"]), abs=1e-5)
    assert bool(importance.capped.any()) and float(given["gradient"].abs().max()) > 1e-3


def updated(
    experience: Experience,
    logps: Tensor,
    config: PPOConfig,
    longest: int,
    monkeypatch: pytest.MonkeyPatch,
    beta: float = 0.0,
    entropies: Tensor | None = None,
) -> dict[str, float]:
    """Metrics of one update in which the policy's log-probabilities are these, whose gradient it leaves."""

    def statistics(policy: Any, value: Any, batch: MicroBatch, **asked: Any) -> update.TokenStatistics:
        here = batch.cut(logps)
        if entropies is None or not asked["entropy_gradient"]:
            return update.TokenStatistics(here, torch.zeros_like(here), None)
        return update.TokenStatistics(here, batch.cut(entropies), None)

    monkeypatch.setattr(update, "token_statistics", statistics)
    still: Any = _Still()
    metrics = StepMetrics()
    unmoved = SimpleNamespace(sum_gradients=lambda: None, step=lambda step: 1.0)
    trainer = update.PPOUpdate(still, None, unmoved, Processes(), config, longest)  # type: ignore[arg-type]
    trainer.run(1, experience, micro_batches(experience.rollout, 1), metrics, beta=beta)
    return metrics.reduce(Processes())
