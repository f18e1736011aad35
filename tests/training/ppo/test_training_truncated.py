"""Responses without an end of sequence: what it means that they are masked, and that they are charged."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from enumeration_toy import TablePolicy
from ppo_toy import LengthScorer, WordScorer, make_trainer
from rewarded_toy import component, identity, rollout, trace
from torch import Tensor

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.records import Experience
from finegrained_rlhf.rewards import ComponentConfig
from finegrained_rlhf.rollout import RolloutConfig
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.directory.samples import read_samples
from finegrained_rlhf.training.ppo import GAE, GroupAdvantages
from finegrained_rlhf.training.ppo.config import KLConfig, PPOConfig
from finegrained_rlhf.training.ppo.experience import make_experience
from finegrained_rlhf.training.ppo.job import check_sampling
from finegrained_rlhf.training.ppo.trainer import PPOTrainer
from finegrained_rlhf.what_if.kept_rollouts import read_kept_step
from finegrained_rlhf.what_if.weights import Weighing, check_recomputed, experience_under

TABLE = TablePolicy(longest=3)


def earned(response: tuple[int, ...]) -> float:
    """A multiple of 1/16 that is no sum over tokens."""
    return (3 * response[0] - 2 * len(response) + len(set(response)) ** 2) / 16


@pytest.mark.parametrize("baseline", ["leave_one_out", "group_mean"])
def test_masked_is_paid_the_baseline(baseline: Any) -> None:
    """The expected gradient, all pairs enumerated, is that of a reward that pays cut responses what a response earns
    on average, exactly; with the group's mean times (N − 1)/N."""
    every = TABLE.responses
    chance = {row: float(TABLE.logprobs(row, TABLE.logits).sum().exp()) for row in every}
    average = sum(chance[row] * earned(row) for row in every)
    pairs = list(itertools.product(every, repeat=2))
    rows = [row for pair in pairs for row in pair]
    mask = torch.tensor([[int(t < len(row)) for t in range(3)] for row in rows])
    cut = torch.tensor([TABLE.end not in row for row in rows])
    paid = component(1.0, [{len(row) - 1: earned(row)} for row in rows], mask)
    drawn = rollout(mask, torch.zeros(mask.shape), [number // 2 for number in range(len(rows))])
    made = make_experience(
        drawn,
        trace(words=paid),
        torch.zeros(mask.shape),
        None,
        beta=0.0,
        config=PPOConfig(kl=KLConfig(place="loss")),
        reduce=identity,
        algorithm=GroupAdvantages(baseline),
        masked=cut,
    )
    assert torch.equal(made.counted, mask) and not made.mask[cut].any() and not made.advantages[cut].any()
    logits = TABLE.logits.clone().requires_grad_()
    loss, worth = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for number, row in enumerate(rows):
        weight = chance[rows[number - number % 2]] * chance[rows[number - number % 2 + 1]] / 2
        loss = loss + weight * float(made.advantages[number, 0]) * TABLE.logprobs(row, logits).sum()
    for row in every:
        reward = earned(row) if TABLE.end in row else average
        worth = worth + TABLE.logprobs(row, logits).sum().exp() * reward
    (found,), (true,) = torch.autograd.grad(loss, logits), torch.autograd.grad(worth, logits)
    factor = 0.5 if baseline == "group_mean" else 1.0
    assert float((found - factor * true).norm() / true.norm()) < 1e-10
    assert cut.any() and float(true.norm()) > 0.01


class Recorder:
    """A step's experience, and the gradient of its first epoch."""

    def __init__(self, trainer: PPOTrainer) -> None:
        self.trainer, self._run = trainer, trainer._update.run
        self.experience: Experience
        self.gradient: dict[str, Tensor] = {}
        trainer._update.run = self._watched  # type: ignore[method-assign]
        trainer.models.optimizer.step = self._keep  # type: ignore[method-assign]

    def _watched(self, step: int, experience: Experience, *rest: Any) -> None:
        self.experience, self.rest = experience, rest
        self._run(step, experience, *rest)

    def _keep(self, step: int) -> float:
        named = self.trainer.models._trained.named_parameters()
        self.gradient = {name: torch.zeros(()) if p.grad is None else p.grad.clone() for name, p in named}
        self.trainer.models._trained.zero_grad()
        return 0.0

    def of(self, experience: Experience) -> Mapping[str, Tensor]:
        """The gradient of another experience of the same responses."""
        self._run(1, experience, *self.rest)
        return self.gradient


CASES: dict[str, dict[str, Any]] = {
    "rloo": {"algorithm": GroupAdvantages(), "loss_average": "constant"},
    "returns": {"algorithm": GroupAdvantages(credit="returns")},
    "gdpo": {
        "algorithm": GroupAdvantages("group_mean", "std", by_component=True, whiten=True),
        "loss_average": "sequence",
        "kl": KLConfig(place="loss", estimator="k3", beta=0.3),
    },
}


@pytest.mark.parametrize(("kind", "length"), [("t5", 7), ("gpt2", 40)])
@pytest.mark.parametrize("name", CASES)
def test_masked_responses_stay_in_baselines_and_in_what_the_loss_is_divided_by(
    tmp_path: Path, name: str, kind: str, length: int
) -> None:
    """The gradient is that of the kept run with their advantages set to 0; the KL in the loss is over all."""
    both = [
        make_trainer(tmp_path / how, kind, epochs=1, max_new_tokens=length, drawn={"truncated": how}, **CASES[name])
        for how in ("kept", "masked")
    ]
    kept, masked = (Recorder(trainer) for trainer in both)
    metrics = [trainer.train_step(1) for trainer in both]
    cut = ~kept.experience.rollout.ended(both[0].models.policy.eos_ids)
    assert 0 < int(cut.sum()) < len(cut)
    assert metrics[1]["truncated"] == pytest.approx(float(cut.double().mean())) and metrics[0]["truncated"] > 0
    assert masked.experience.learnt is not None and torch.equal(masked.experience.learnt, ~cut)
    expected = torch.where(cut[:, None], 0.0, kept.experience.advantages)
    assert torch.equal(masked.experience.advantages, expected)
    own = dict(masked.gradient)
    for key, gradient in kept.of(replace(kept.experience, advantages=expected)).items():
        torch.testing.assert_close(own[key], gradient, atol=1e-6, rtol=1e-5, msg=key)
    assert any(float(gradient.abs().max()) > 1e-3 for gradient in own.values())


def test_a_value_model_learns_nothing_of_them(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, epochs=1, drawn={"truncated": "masked"}, algorithm=GAE())
    recorder = Recorder(trainer)
    trainer.train_step(1)
    made, own = recorder.experience, dict(recorder.gradient)
    assert made.masked is not None and made.masked.any() and made.returns is not None
    other = torch.where(made.masked[:, None], made.returns + 5.0, made.returns)
    for key, gradient in recorder.of(replace(made, returns=other)).items():
        assert torch.equal(own[key], gradient), key
    assert any(float(g.abs().max()) > 0 for key, g in own.items() if key.startswith("value"))


def test_samples_say_so_and_are_weighed_as_they_were_trained(tmp_path: Path) -> None:
    algorithm = GroupAdvantages()
    scorers = {"words": WordScorer(), "length": LengthScorer()}
    trainer = make_trainer(tmp_path, scorers=scorers, algorithm=algorithm, drawn={"truncated": "masked"})
    metrics = trainer.train_step(1)
    rows = read_samples(tmp_path / "samples" / "step_1.jsonl")
    masked = [row for row in rows if row.masked]
    assert len(masked) == metrics["truncated"] * len(rows) > 0
    assert all(row.tokens is not None and not any(row.tokens.numbers["advantage"]) for row in masked)
    line = {"beta": metrics["beta"], "episodes_per_step": metrics["episodes_per_step"]}
    kept = read_kept_step(RunDirectory(tmp_path), 1, ["words", "length"], line, critic=False)
    reward = Weighing(trainer.composer.config.weights, {"words": ComponentConfig(), "length": ComponentConfig()}, {})
    check_recomputed(kept, experience_under(kept, reward, trainer.config, algorithm), trainer.config)


def test_what_cannot_be_masked_charged_or_drawn_again_is_refused() -> None:
    group = GroupAdvantages()
    for rollout_config, algorithm, penalty, told in (
        (RolloutConfig(4, truncated="charged"), group, 0.0, "truncated=charged .* expected more than 0"),
        (RolloutConfig(4, truncated="masked"), group, 0.5, "end_penalty=0.5 charges; take truncated=charged"),
        (RolloutConfig(4, resample=1), GAE(), 0.0, "rollout.resample .* expected 0, or algorithm=rloo"),
        (RolloutConfig(4, resample=1), GroupAdvantages("batch_mean"), 0.0, "rollout.resample"),
    ):
        with pytest.raises(ConfigError, match=told):
            check_sampling(rollout_config, algorithm, penalty)
    check_sampling(RolloutConfig(4, truncated="charged", resample=2), group, 0.5)
    check_sampling(RolloutConfig(4), GAE(), 0.5)
    with pytest.raises(ConfigError, match="truncated: expected"):
        RolloutConfig(4, truncated="dropped")  # type: ignore[arg-type]
