"""What the preflight finds wrong with a training step: responses, rewards, KL and ratio, one process against two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from doctor_toy import STEP, case_maker, diagnose, failed, make_smoke, odd, warned

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.preflight.doctor import step as doctor_step
from finegrained_rlhf.preflight.doctor.case import Case, Finding
from finegrained_rlhf.rewards import OverlongPenalty
from finegrained_rlhf.rollout.engine import RolloutSampler
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.ppo.job import TrainPPO

CaseMaker = Callable[..., Case]


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_smoke(tmp_path_factory.mktemp("doctor"))


@pytest.fixture
def case(smoke: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CaseMaker:
    """Without the plan of memory, which has tests of its own and takes a quarter of the time of these."""
    monkeypatch.setattr(doctor_step, "plan_of", lambda job, processes: None)
    monkeypatch.setattr(doctor_step, "fits", lambda plan, processes, copies=1: True)
    return case_maker(smoke, tmp_path / "scratch")


# One training step -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "check", "said"),
    [
        ("nan", "rewards", "not finite"),
        ("raises", "rewards", "KeyError: 'passages' (doctor_toy.py"),
        ("few", "rewards", "scored 3 responses, 4 were given"),
        ("outside", "rewards", "outside the response (0:"),
    ],
)
def test_scorers_that_break_the_contract(case: CaseMaker, fault: str, check: str, said: str) -> None:
    findings = diagnose(case(*odd(fault)), *STEP)
    found = failed(findings)
    assert (found.check, "odd" in found.measured) == (check, True) and said in found.measured
    assert found.mend.startswith("reward.components.odd")
    assert next(f for f in findings if f.check == "start").status == "pass"  # does not need rewards
    assert next(f for f in findings if f.check == "training step").status == "skipped"


def test_a_constant_component(case: CaseMaker) -> None:
    found = [f for f in diagnose(case(*odd("constant")), "responses", "rewards") if "odd" in f.measured]
    assert [f.status for f in found] == ["warn"] and "constant" in found[0].measured
    assert "reward.components.odd" in found[0].mend


WEIGHTLESS = tuple(f"reward.weights.{name}=0" for name in ("relevance", "factuality", "completeness"))


@pytest.mark.parametrize(
    ("given", "status"),
    [
        (("algorithm=grpo", *odd("constant")), "warn"),
        (("algorithm=grpo",), "fail"),
        (odd("constant"), "pass"),  # PPO
    ],
)
def test_a_step_without_a_gradient(case: CaseMaker, given: tuple[str, ...], status: str) -> None:
    """A group method learns nothing from responses that are paid alike, which the next prompts need not be."""
    found = diagnose(case(*WEIGHTLESS, *given), *STEP)[-1]
    assert (found.check, found.status) == ("training step", status)
    assert ("no gradient" in found.measured) == (status != "pass")
    assert ("paid alike" in found.measured) == (status == "warn")


def test_a_budget_for_whole_responses(case: CaseMaker) -> None:
    budget = "+reward.settings.completeness={_target_: finegrained_rlhf.rewards.ComponentConfig, aggregation: budget}"
    found = failed(diagnose(case(budget), *STEP))
    assert found.check == "alignment" and found.mend.startswith("reward.settings.completeness")


def test_penalties_for_form_are_part_of_the_step(case: CaseMaker) -> None:
    """They are no scorers that the doctor could ask, and the step is rewarded with them."""
    on = case("reward.end_penalty=0.5", "reward.overlong.limit=3", "reward.overlong.per_token=0.1")
    findings = diagnose(on, *STEP)
    assert not [found for found in findings if found.status == "fail"]
    assert not [found for found in findings if "unfinished" in found.measured and found.check == "rewards"]
    assert on.metrics["reward/overlong/raw"] > 0
    assert on.metrics["reward/overlong/weighted"] == pytest.approx(-0.1 * on.metrics["reward/overlong/raw"])
    with pytest.raises(ConfigError, match=r"reward\.overlong\.limit: expected fewer than rollout\.max_new_tokens=\d+"):
        assert on.sample is not None
        replace(on.sample, reward=replace(on.sample.reward, overlong=OverlongPenalty(999, 1.0)))


def test_a_question_that_leaves_a_reward_model_no_room_is_refused_before_the_first_step(case: CaseMaker) -> None:
    found = failed(diagnose(case("+reward.components.relevance.max_length=8"), *STEP))
    assert found.check == "responses" and "no answer to this prompt can be judged" in found.measured


def rolled_out(monkeypatch: pytest.MonkeyPatch, keep: int) -> None:
    """Only the first `keep` responses have a text."""
    draw = RolloutSampler.draw

    def emptied(*args: Any, **named: Any) -> Any:
        rollout = draw(*args, **named)
        texts = [text if i < keep else "" for i, text in enumerate(rollout.texts)]
        return replace(rollout, texts=texts)

    monkeypatch.setattr(RolloutSampler, "draw", emptied)


def test_empty_and_cut_responses(case: CaseMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    cut = warned(diagnose(case("rollout.max_new_tokens=2"), "responses"))
    assert "100% cut at 2 tokens" in cut.measured and "rollout.max_new_tokens" in cut.mend
    with monkeypatch.context() as some:
        rolled_out(some, keep=3)
        assert "1 empty" in warned(diagnose(case(), "responses")).measured
    rolled_out(monkeypatch, keep=0)
    found = failed(diagnose(case(), "responses"))
    assert "4 empty" in found.measured and found.mend.startswith("policy.path")


def spoiled(monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Any], None]) -> None:
    build = TrainPPO.build

    def other(self: TrainPPO, *args: Any) -> Any:
        trainer = build(self, *args)
        spoil(trainer)
        return trainer

    monkeypatch.setattr(TrainPPO, "build", other)


def test_a_reference_that_is_not_the_policy(case: CaseMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(trainer: Any) -> None:
        with torch.no_grad():
            trainer.models.reference_model.shared.weight.mul_(1.1)

    spoiled(monkeypatch, spoil)
    found = failed(diagnose(case(), *STEP))
    assert found.check == "start" and "allowed 1e-05" in found.measured
    assert float(found.measured.split("π_ref| ")[1].split(",")[0]) > 1e-3


def test_a_policy_that_is_not_the_same_twice(case: CaseMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    spoiled(monkeypatch, lambda trainer: trainer.models.policy.train())  # dropout
    found = failed(diagnose(case("rollout.logprobs=update"), *STEP))
    assert found.check == "start" and "rollout.logprobs" in found.mend
    assert float(found.measured.split("|log ratio| ")[1].split()[0]) > 1e-3


def test_a_step_that_diverges(case: CaseMaker) -> None:
    found = failed(diagnose(case("optimizer.lr=1e30", "ppo.epochs=3"), *STEP))
    assert found.check == "training step" and "optimizer.lr" in found.mend


def test_a_step_without_memory(case: CaseMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Any, step: int) -> dict[str, float]:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 TiB.\nand more")

    monkeypatch.setattr("finegrained_rlhf.training.ppo.trainer.PPOTrainer.train_step", full)
    found = failed(diagnose(case(), *STEP))
    assert found.measured == "CUDA out of memory. Tried to allocate 1 TiB." and "doctor.prompts" in found.mend


def test_the_sample_is_the_run_made_small(case: CaseMaker) -> None:
    examined = case("optimizer.warmup_steps=100", "tracking=wandb", "processes.precision=bf16", prompts=3)
    job, sample, exact = examined.job, examined.sample, examined.exact
    assert job is not None and sample is not None and exact is not None
    assert (sample.rollout.prompts_per_step, job.rollout.prompts_per_step) == (3, 4)
    assert sample.optimizer.lr_at(1, sample.total_steps) == job.optimizer.lr > job.optimizer.lr_at(1, job.total_steps)
    assert (sample.tracking.kind, sample.processes.precision, exact.processes.precision) == ("jsonl", "bf16", "fp32")
    assert asdict(sample.ppo) == asdict(job.ppo)


# Two processes ---------------------------------------------------------------------------------------------------

ONE = {"kl": 0.0, "reward/odd/raw": 2.0, "loss/policy": 0.5, "time/total_s": 1.0, "processes": 1.0}


def test_metrics_are_compared() -> None:
    same = doctor_step.compare_metrics(ONE, {**ONE, "time/total_s": 9.0, "processes": 2.0, "step": 1})
    assert same.status == "pass" and same.measured.startswith("3 metrics")
    near = doctor_step.compare_metrics(ONE, {**ONE, "loss/policy": 0.5004})
    assert near.status == "pass" and "4.0e-04 (loss/policy)" in near.measured
    update = doctor_step.compare_metrics(ONE, {**ONE, "loss/policy": 0.6})
    assert update.status == "fail" and "loss/policy 0.5 and 0.6" in update.measured
    assert doctor_step.compare_metrics(ONE, {**ONE, "loss/policy": 0.6}, ("loss/",)).status == "pass"
    reward = doctor_step.compare_metrics(ONE, {**ONE, "reward/odd/raw": 3.0})
    assert reward.status == "fail" and reward.mend.startswith("reward.components.odd")
    assert doctor_step.compare_metrics(ONE, {**ONE, "kl": float("nan")}).status == "fail"
    assert "kl" in doctor_step.compare_metrics(ONE, {"reward/odd/raw": 2.0}).measured


def test_two_processes_that_fail_or_differ(case: CaseMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    names = (*STEP, "two processes")

    def run(answer: Callable[[], dict[str, float]]) -> list[Finding]:
        examined = case()
        examined.launch = answer
        return diagnose(examined, *names)

    def refuses() -> dict[str, float]:
        raise ConfigError("two processes failed: no route")

    found = failed(run(refuses))
    assert found.measured == "two processes failed: no route" and "doctor.two_processes=false" in found.mend
    found = failed(run(lambda: {}))
    assert found.check == "two processes" and "gradient_norm" in found.measured


@pytest.mark.slow
def test_frozen_weights_in_bf16_are_compared_in_fp32_too(case: CaseMaker) -> None:
    examined = case("policy=lora", "policy.frozen_dtype=bfloat16", "processes.precision=bf16")
    assert not examined.problems and examined.sample is not None and examined.exact is not None
    assert examined.sample.policy.frozen_dtype == "bfloat16"
    assert (examined.exact.policy.frozen_dtype, examined.exact.processes.precision) == ("float32", "fp32")
    assert not [finding for finding in diagnose(examined, "configuration") if finding.status == "fail"]


@pytest.mark.slow
def test_in_bf16_the_comparison_is_made_in_fp32(case: CaseMaker) -> None:
    examined = case("processes.precision=bf16")
    assert examined.exact is not None
    expected = replace(examined.exact, output_dir=f"{examined.exact.output_dir}_2")
    metrics = expected.build(Processes(expected.processes), RunDirectory(expected.output_dir).create()).train_step(1)
    examined.launch = lambda: metrics
    findings = diagnose(examined, *STEP, "two processes")
    assert findings[-1].status == "pass", findings[-1]
