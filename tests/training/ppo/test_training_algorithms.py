"""Algorithms without a value model, and several value heads: they train, resume and share work as PPO does."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from ppo_toy import LengthScorer, WordScorer, assert_alike, make_trainer, run_together, save_checkpoint
from rl_toy import policy
from script_runs import ROOT
from seldom import seldom
from torch import Tensor

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.models.config import LoraConfig
from finegrained_rlhf.models.loading import open_policy
from finegrained_rlhf.models.weights.saving import save_policy
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.ppo import GAE, GroupAdvantages
from finegrained_rlhf.training.ppo.advantages import AdvantageEstimator, check_values
from finegrained_rlhf.training.ppo.config import EntropyConfig, KLConfig, PPOConfig
from finegrained_rlhf.training.ppo.metrics import KeptSamples
from finegrained_rlhf.training.ppo.trainer import PPOTrainer

SLOW = pytest.mark.slow
LOSS_KL = KLConfig(place="loss", estimator="k3", beta=0.04)
CASES: dict[str, tuple[AdvantageEstimator, dict[str, Any]]] = {
    "rloo": (GroupAdvantages(), {"loss_average": "constant"}),
    "rloo_returns": (GroupAdvantages(credit="returns"), {}),
    "rloo_process": (GroupAdvantages(credit="process", by_component=True), {}),
    "grpo": (GroupAdvantages("group_mean", "std"), {"loss_average": "sequence", "kl": LOSS_KL}),
    "grpo_process": (GroupAdvantages("group_mean", "std", "process"), {"loss_average": "sequence", "kl": LOSS_KL}),
    "dr_grpo": (GroupAdvantages("group_mean"), {"loss_average": "constant", "kl": LOSS_KL, "clip_upper": 0.3}),
    "gdpo": (GroupAdvantages("group_mean", "std", by_component=True, whiten=True), {"kl": LOSS_KL, "dual_clip": 3.0}),
    "gdpo_returns": (
        GroupAdvantages("group_mean", "std", "returns", "share", by_component=True, whiten=True),
        {"kl": LOSS_KL},
    ),
    "reinforce": (GroupAdvantages("batch_mean", whiten=True), {}),
    "reinforce_returns": (GroupAdvantages("batch_mean", credit="returns"), {}),
    "heads": (GAE(per_component=True), {}),
    "ppo_exact_kl": (GAE(), {"kl": KLConfig(estimator="exact", controller="adaptive", beta=0.1, horizon=100.0)}),
    "grpo_exact_kl": (
        GroupAdvantages("group_mean", "std"),
        {"kl": KLConfig(place="loss", estimator="exact", beta=0.1)},
    ),
    "gspo": (
        GroupAdvantages("group_mean", "std", "returns"),
        {"kl": LOSS_KL, "mini_batches": 2, "ratio": "sequence", "clip": 1e-3, "loss_average": "sequence"},
    ),
    "cispo_with_entropy": (
        GroupAdvantages("group_mean", "std"),
        {
            "kl": KLConfig(place="loss", estimator="exact", beta=0.1),
            "mini_batches": 2,
            "loss": "cispo",
            "clip": 1.0,
            "clip_upper": 0.1,
            "entropy": EntropyConfig(0.02, target=9.0, step=0.01),
        },
    ),
    "ppo_mini_batches": (GAE(), {"mini_batches": 2, "entropy": EntropyConfig(0.01)}),
    "ppo_loss_kl": (GAE(), {"kl": KLConfig(place="loss", estimator="k2", beta=0.1)}),
}


def options_of(name: str) -> dict[str, Any]:
    algorithm, ppo = CASES[name]
    return {"algorithm": algorithm, **ppo}


def weights(trainer: PPOTrainer) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in trainer.models._trained.named_parameters()}


def steps(trainer: PPOTrainer, first: int, last: int) -> list[dict[str, float]]:
    done = [trainer.train_step(step) for step in range(first, last + 1)]
    return [{name: x for name, x in metrics.items() if not name.startswith("time/")} for metrics in done]


@pytest.mark.parametrize(
    ("name", "kind"),
    [*((name, "t5") for name in CASES), ("rloo_returns", "gpt2"), ("gdpo", "gpt2"), ("cispo_with_entropy", "gpt2")],
)
def test_it_starts_soundly_and_every_weight_moves(tmp_path: Path, name: str, kind: str) -> None:
    trainer = make_trainer(tmp_path, kind, epochs=2, prompts_per_step=2, validation=2, **options_of(name))
    trainer.samples = KeptSamples(every=1)
    before = weights(trainer)
    (first,) = steps(trainer, 1, 1)
    assert first["kl"] == pytest.approx(0.0, abs=1e-4) and first["gradient_norm"] > 0
    after = weights(trainer)
    assert all(float((after[name] - p).abs().max()) > 0 for name, p in before.items() if "wpe" not in name)
    critic = trainer.algorithm.critic
    of_values = {"loss/value", "clip_fraction/value", "value", "return", "explained_variance"}
    assert of_values & set(first) == (of_values if critic else set())
    assert ("loss/kl" in first) == (trainer.config.kl.place == "loss")
    assert any(name.startswith("value") for name in after) == critic
    directory = save_checkpoint(trainer, tmp_path / "checkpoint")
    assert (directory / "value_state.safetensors").exists() == critic
    rows = [json.loads(line) for line in (tmp_path / "samples" / "step_1.jsonl").read_text().splitlines()]
    for row in rows:
        tokens, shares = row["tokens"], row["shares"]
        assert ("value" in tokens) == critic
        assert {"words", "length"} <= set(shares)
        for t, advantage in enumerate(tokens["advantage"]):
            assert sum(values[t] for values in shares.values()) == pytest.approx(advantage, abs=1e-5)
    assert any(any(row["tokens"]["advantage"]) for row in rows)
    trainer.validate(1)
    kept = json.loads((tmp_path / "samples" / "validation_step_1.jsonl").read_text().splitlines()[0])
    assert ("advantage" in kept["tokens"]) == critic


@pytest.mark.parametrize("credit", ["process", "returns"])
def test_a_group_learns_a_rewarded_word(tmp_path: Path, credit: Any) -> None:
    trainer = make_trainer(
        tmp_path,
        scorers={"words": WordScorer()},
        lr=2e-2,
        samples=8,
        prompts_per_step=5,
        micro_batch_prompts=5,
        algorithm=GroupAdvantages("group_mean", "std", credit),
        kl=LOSS_KL,
        epochs=2,
    )
    done = steps(trainer, 1, 6)
    assert done[0]["reward/words/raw"] < 0
    assert done[-1]["reward/words/raw"] > 1.0


def test_dense_credit_reaches_the_rewarded_token_alone(tmp_path: Path) -> None:
    """With returns a token is not credited with what was earned before it; with outcomes it is."""
    found = {}
    for credit in ("outcome", "returns"):
        algorithm = GroupAdvantages("batch_mean", credit=credit)  # type: ignore[arg-type]
        trainer = make_trainer(tmp_path / credit, scorers={"words": WordScorer()}, algorithm=algorithm, epochs=1)
        seen: list[Any] = []
        run = trainer._update.run
        trainer._update.run = lambda *a, run=run, seen=seen: seen.append(a[1]) or run(*a)  # type: ignore[method-assign]
        trainer.train_step(1)
        found[credit] = seen[0]
    outcome, returns = found["outcome"], found["returns"]
    mask = outcome.rollout.response_mask.bool()
    last = outcome.rollout.lengths() - 1
    assert all(len(set(row[m].tolist())) == 1 for row, m in zip(outcome.advantages, mask, strict=True))
    earned = returns.trace.total.gather(1, last[:, None])[:, 0]
    at_the_end = returns.advantages.gather(1, last[:, None])[:, 0]
    torch.testing.assert_close(at_the_end - at_the_end[0], earned - earned[0], atol=1e-5, rtol=0)
    assert not torch.allclose(outcome.advantages, returns.advantages, atol=0.1)


@pytest.mark.parametrize(
    ("name", "lora"),
    [
        ("gdpo", False),
        ("cispo_with_entropy", True),
        *(
            pytest.param(*case, marks=SLOW)
            for case in (("rloo_returns", True), ("grpo_exact_kl", True), ("heads", False))
        ),
    ],
)
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path, name: str, lora: bool) -> None:
    save_policy(policy("t5"), tmp_path / "start")

    def fresh(place: str) -> PPOTrainer:
        owner = open_policy(tmp_path / "start", lora=LoraConfig(rank=2) if lora else None)
        with torch.no_grad():
            for n, p in owner.model.named_parameters():
                if ".lora_A" in n:
                    p.copy_(torch.linspace(-0.1, 0.1, p.numel()).view_as(p))
        return make_trainer(tmp_path / place, owner=owner, lr=5e-3, epochs=2, **options_of(name))

    whole = fresh("a")
    expected = steps(whole, 1, 3)
    stopped = fresh("b")
    steps(stopped, 1, 2)
    resumed = fresh("b")
    resumed.load_state(save_checkpoint(stopped, tmp_path / "checkpoint"))
    assert steps(resumed, 3, 3) == expected[2:]
    assert all(torch.equal(weights(resumed)[n], weight) for n, weight in weights(whole).items())


@pytest.mark.parametrize(
    "name",
    seldom(
        ["grpo_process", "gdpo_returns", "grpo_exact_kl", "heads", "gspo", "cispo_with_entropy"],
        ["gdpo_returns", "heads", "cispo_with_entropy"],
    ),
)
def test_processes_do_what_one_does(tmp_path: Path, name: str) -> None:
    """Two prompts on three processes: one has none."""

    def work(processes: Processes) -> tuple[list[dict[str, float]], dict[str, Tensor]]:
        trainer = make_trainer(
            tmp_path / str(processes.count),
            processes=processes,
            owner=owners.pop(),
            prompts_per_step=2,
            epochs=2,
            **options_of(name),
        )
        return steps(trainer, 1, 2), weights(trainer)

    owners = [policy("t5")]
    one = work(Processes())
    owners = [copy.deepcopy(policy("t5")) for _ in range(3)]
    assert_alike(one, run_together(3, work))


@pytest.mark.parametrize(
    "name",
    seldom(
        ["gdpo_returns", "dr_grpo", "ppo_exact_kl", "heads", "ppo_mini_batches"],
        ["gdpo_returns", "dr_grpo", "ppo_mini_batches"],
    ),
)
def test_micro_batches_do_not_change_the_step(tmp_path: Path, name: str) -> None:
    found = []
    for size in (1, 3):
        trainer = make_trainer(tmp_path / str(size), micro_batch_prompts=size, epochs=2, **options_of(name))
        found.append((steps(trainer, 1, 2), weights(trainer)))
    (one, start), (other, moved) = found
    for a, b in zip(one, other, strict=True):
        assert a == pytest.approx(b, abs=1e-4, rel=1e-4)
    for key, parameter in start.items():
        torch.testing.assert_close(moved[key], parameter, atol=2e-5, rtol=0)


# Settings --------------------------------------------------------------------------------------------------------


def test_what_an_algorithm_cannot_use_is_refused(tmp_path: Path) -> None:
    group, std = GroupAdvantages(), GroupAdvantages("group_mean", "std", "process")
    for algorithm, config, samples, told in (
        (group, PPOConfig(), 1, "rollout.samples_per_prompt: algorithm.baseline=leave_one_out .* at least 2, got 1"),
        (group, PPOConfig(discount=0.9), 4, "ppo.discount: .* expected 1.0, got 0.9"),
        (std, PPOConfig(), 4, "ppo.kl.place: .* expected loss, got reward"),
        (GroupAdvantages("group_mean", "std", by_component=True), PPOConfig(), 4, "ppo.kl.place"),
    ):
        with pytest.raises(ConfigError, match=told):
            algorithm.check(config, samples)
    std.check(PPOConfig(kl=LOSS_KL), 2)
    GroupAdvantages("group_mean", "std").check(PPOConfig(), 2)
    GroupAdvantages("batch_mean").check(PPOConfig(), 1)
    GAE().check(PPOConfig(discount=0.9), 1)
    with pytest.raises(ConfigError, match="samples_per_prompt"):
        make_trainer(tmp_path, samples=1, algorithm=group)
    for wrong in ({"baseline": "x"}, {"scale": "x"}, {"credit": "x"}, {"position": "x"}):
        with pytest.raises(ConfigError, match=f"{next(iter(wrong))}: expected one of"):
            GroupAdvantages(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="algorithm.scale=std .* not leave_one_out"):
        GroupAdvantages(scale="std")
    for kind, algorithm, told in (
        ("none", GAE(), "value=none: GAE .* learns a value model"),
        ("shared", group, "value.kind=shared: GroupAdvantages learns no value model"),
    ):
        with pytest.raises(ConfigError, match=told):
            check_values(kind, algorithm)
    check_values("none", group)
    check_values("separate", GAE())
    for wrong in ({"clip_upper": 0.0}, {"dual_clip": 1.0}):
        with pytest.raises(ConfigError, match=f"{next(iter(wrong))}: expected"):
            PPOConfig(**wrong)
    for wrong in ({"place": "x"}, {"estimator": "k4"}):
        with pytest.raises(ConfigError, match=f"{next(iter(wrong))}: expected"):
            KLConfig(**wrong)  # type: ignore[arg-type]


def test_how_many_heads_there_are() -> None:
    names = ["words", "length", "unfinished"]
    assert GAE().value_heads(names, PPOConfig()) == 1
    assert GAE(per_component=True).value_heads(names, PPOConfig()) == 4  # and one for the KL penalty
    assert GAE(per_component=True).value_heads(names, PPOConfig(kl=LOSS_KL)) == 3
    assert GroupAdvantages().value_heads(names, PPOConfig()) == 0


@pytest.mark.parametrize("path", sorted((ROOT / "conf/algorithm").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_algorithm_says_whether_it_has_a_value_model(path: Path) -> None:
    given = yaml.safe_load(path.read_text())
    inherited = {name for name in given.get("defaults", []) if isinstance(name, str)}
    assert ({"override /value": "none"} in given.get("defaults", [])) == (path.stem in ("rloo", "grpo"))
    assert bool(inherited & {"rloo", "grpo"}) == (path.stem not in ("ppo", "rloo", "grpo"))


def test_the_names_of_components_may_come_in_any_order(tmp_path: Path) -> None:
    """Heads belong to names."""
    both = {"words": WordScorer(), "length": LengthScorer()}
    turned = dict(reversed(list(both.items())))
    one, other = (
        make_trainer(tmp_path / name, scorers=scorers, algorithm=GAE(per_component=True))
        for name, scorers in (("one", both), ("other", turned))
    )
    first, second = steps(one, 1, 2), steps(other, 1, 2)
    for a, b in zip(first, second, strict=True):
        assert a == pytest.approx({key: b[key] for key in a}, abs=1e-5)


def test_cispo_has_no_dual_clip() -> None:
    with pytest.raises(ConfigError, match="ppo.dual_clip bounds the loss of ppo.loss=clip"):
        PPOConfig(loss="cispo", dual_clip=3.0)
