"""The KL over the vocabulary in training: its value, who reads it, and what it costs a run that does not ask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from families_toy import transformers_rows
from ppo_toy import make_trainer
from rl_toy import policy
from torch import Tensor

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.records import Experience
from finegrained_rlhf.models.config import LoraConfig
from finegrained_rlhf.models.lora import add_lora
from finegrained_rlhf.models.policy import CausalPolicy, Policy
from finegrained_rlhf.models.weights.reference import ReferencePolicy
from finegrained_rlhf.training.ppo.config import KLConfig
from finegrained_rlhf.training.ppo.trainer import PPOTrainer

EXACT = {"estimator": "exact"}
GOLDEN: dict[str, tuple[list[float], list[float]]] = {
    "t5": ([1.19284, 2.30546], [0.677141, 1.27499]),
    "llama": ([2.8368, 2.57074], [1.52655, 1.42074]),
}
"""The metric `kl` of steps 2 and 3, nats an episode: the mean of the drawn tokens, and the KL over the vocabulary."""


def experience_of(
    trainer: PPOTrainer, step: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[Experience, dict[str, float]]:
    """What a training step learns from, and its metrics."""
    seen: list[Experience] = []
    run = trainer._update.run

    def watched(step: int, experience: Experience, *rest: Any) -> None:
        seen.append(experience)
        run(step, experience, *rest)

    monkeypatch.setattr(trainer._update, "run", watched)
    metrics = trainer.train_step(step)
    return seen[0], metrics


def whole_logits(owner: Policy, experience: Experience) -> Tensor:
    """[R, T, V] by transformers' own forward, row by row."""
    rollout = experience.rollout
    return transformers_rows(owner.model, rollout.prompts, rollout.prompt_index, rollout.response_ids)


@pytest.mark.parametrize(("temperature", "scored"), [(1.0, False), (0.7, False), (0.7, True)])
def test_the_metric_is_the_divergence_of_what_is_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temperature: float, scored: bool
) -> None:
    """By transformers' forward of policy and reference; per token under `estimator=exact` the penalty is β times it."""
    trainer = make_trainer(
        tmp_path, "llama", kl=KLConfig(beta=0.5, **EXACT), temperature=temperature, score_sampling=scored, lr=1e-2,
        whiten_rewards=False,
    )  # fmt: skip
    trainer.train_step(1)
    before = [p.detach().clone() for p in trainer.models.policy.model.parameters()]
    found, metrics = experience_of(trainer, 2, monkeypatch)
    with torch.no_grad():
        for parameter, value in zip(trainer.models.policy.model.parameters(), before, strict=True):
            parameter.copy_(value)
        own = trainer.models.reference.own
        assert own is not None
        divisor = temperature if scored else 1.0
        policy_logits, reference = (whole_logits(of, found) / divisor for of in (trainer.models.policy, own))
    pair = (torch.distributions.Categorical(logits=of) for of in (policy_logits, reference))
    expected = torch.distributions.kl_divergence(*pair) * found.rollout.response_mask
    assert found.kl is not None
    torch.testing.assert_close(found.kl, expected, atol=1e-4, rtol=1e-3)
    assert metrics["kl"] == pytest.approx(float(expected.sum(dim=1).mean()), rel=1e-3) and metrics["kl"] > 0.01
    log_ratio = (found.rollout.logprobs - found.reference_logprobs) * found.rollout.response_mask
    assert metrics["log_ratio"] == pytest.approx(float(log_ratio.sum(dim=1).mean()), rel=1e-4)
    torch.testing.assert_close(found.rewards, found.trace.total - 0.5 * found.kl, atol=1e-5, rtol=0)


def test_controller_and_limit_read_it_beside_a_penalty_by_k1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kl = KLConfig(beta=0.1, controller="adaptive", target=1e-3, horizon=100.0, limit=1e-6, patience=1, measure="exact")
    trainer = make_trainer(tmp_path, "t5", kl=kl, lr=1e-2, whiten_rewards=False)
    trainer.train_step(1)
    assert trainer.stop_reason is None  # before the first update the divergence is 0, not nearly
    beta = trainer.kl_controller.beta
    found, metrics = experience_of(trainer, 2, monkeypatch)
    assert trainer.stop_reason is not None and trainer.kl_controller.beta > beta
    log_ratio = (found.rollout.logprobs - found.reference_logprobs) * found.rollout.response_mask
    torch.testing.assert_close(found.rewards, found.trace.total - beta * log_ratio, atol=1e-5, rtol=0)
    assert "log_ratio" in metrics and "log_ratio" not in make_trainer(tmp_path / "plain", "t5").train_step(1)


@pytest.mark.parametrize("kind", [pytest.param("t5", marks=pytest.mark.slow), "llama"])
def test_what_is_measured_changes_no_weight(tmp_path: Path, kind: str) -> None:
    """Under the paper's PPO `kl` is another number, `log_ratio` the one that it was, and training the same bits."""

    def trained(measure: Any) -> tuple[PPOTrainer, list[dict[str, float]]]:
        trainer = make_trainer(
            tmp_path / measure, kind, kl=KLConfig(measure=measure), temperature=0.7, drawn={"top_p": 0.8}, lr=1e-2
        )
        return trainer, [trainer.train_step(step) for step in (1, 2, 3)]

    (one, sampled), (other, exact) = trained("sampled"), trained("exact")
    for a, b in zip(one.models.policy.model.parameters(), other.models.policy.model.parameters(), strict=True):
        assert torch.equal(a, b)
    measured = {"kl", "log_ratio"}
    for before, now in zip(sampled, exact, strict=True):
        assert now["log_ratio"] == before["kl"]
        assert {k: v for k, v in before.items() if k not in measured and not k.startswith("time/")} == {
            k: v for k, v in now.items() if k not in measured and not k.startswith("time/")
        }
    golden = GOLDEN[kind]
    assert ([row["kl"] for row in sampled[1:]], [row["kl"] for row in exact[1:]]) == (
        pytest.approx(golden[0], rel=1e-3), pytest.approx(golden[1], rel=1e-3),
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["t5", pytest.param("llama", marks=pytest.mark.slow)])
def test_inside_the_loss_it_holds_the_policy_back(tmp_path: Path, kind: str) -> None:
    def moved(beta: float) -> float:
        trainer = make_trainer(tmp_path / str(beta), kind, kl=KLConfig("loss", beta=beta, **EXACT), lr=1e-2)
        return [trainer.train_step(step) for step in (1, 2, 3)][-1]["kl"]

    assert 0 < moved(20.0) < 0.5 * moved(0.0)


def test_the_reference_of_adapters_on_the_head_has_its_own_logits(tmp_path: Path) -> None:
    model = policy("llama").model
    wrapper = add_lora(model, LoraConfig(rank=2, alpha=4, target_modules=("q_proj", "lm_head")))
    ours = CausalPolicy(model, policy("llama").tokenizer, wrapper).eval()
    states = torch.randn(5, 16)
    before = ours.head(states).detach()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:
                parameter.add_(0.5)
    reference = ReferencePolicy(ours)
    torch.testing.assert_close(reference.head_of_pass()(states), before)
    assert not torch.allclose(ours.head(states), before)


@pytest.mark.parametrize("wrong", [{"estimator": "full"}, {"measure": "k1"}])
def test_other_names_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="exact, got"):
        KLConfig(**wrong)
