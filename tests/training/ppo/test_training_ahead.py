"""Rollouts drawn one step ahead: by which weights, with which correction, and what a checkpoint keeps of them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from ppo_toy import assert_alike, make_trainer, run_together, save_checkpoint
from rl_toy import policy
from torch import Tensor

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.records import Experience
from finegrained_rlhf.models.config import LoraConfig
from finegrained_rlhf.models.loading import open_policy
from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.models.weights.saving import save_policy
from finegrained_rlhf.rollout import RolloutConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.ppo import GroupAdvantages
from finegrained_rlhf.training.ppo.trainer import PPOTrainer

AHEAD = {"ahead": 1, "importance_cap": 100.0}


def weights(trainer: PPOTrainer) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in trainer.models._trained.named_parameters()}


def steps(trainer: PPOTrainer, first: int, last: int) -> list[dict[str, float]]:
    done = [trainer.train_step(step) for step in range(first, last + 1)]
    return [{name: x for name, x in metrics.items() if not name.startswith("time/")} for metrics in done]


def logprobs(owner: Policy, experience: Experience) -> Tensor:
    rollout = experience.rollout
    with torch.no_grad():
        memory = owner.encode(rollout.prompts)
        return owner.logprobs(memory, rollout.prompt_index, rollout.response_ids, rollout.response_mask).logprobs


@pytest.mark.parametrize("kind", ["t5", "llama"])
def test_a_rollout_is_that_of_the_weights_before_the_last_update(tmp_path: Path, kind: str) -> None:
    """Its tokens, its log-probabilities and the weights that correct it, against copies of the policy at each step."""
    trainer = make_trainer(tmp_path, kind, drawn=AHEAD, lr=1e-2, epochs=2)
    seen: list[Experience] = []
    run = trainer._update.run
    trainer._update.run = lambda *a: seen.append(a[1]) or run(*a)  # type: ignore[func-returns-value,method-assign]
    owners, metrics = [], []
    for step in (1, 2, 3):
        owners.append(copy.deepcopy(trainer.models.policy))
        metrics.append(trainer.train_step(step))
    for step, (experience, now) in enumerate(zip(seen, owners, strict=True), start=1):
        drew = owners[max(step - 2, 0)]
        rollout, real = experience.rollout, experience.rollout.response_mask.bool()
        other = make_trainer(tmp_path / f"{step}", kind, owner=drew)
        again = other.draws.rollout(step)
        assert [prompt.id for prompt in again.prompts] == [prompt.id for prompt in rollout.prompts]
        assert torch.equal(again.response_ids, rollout.response_ids)
        theirs, ours = logprobs(drew, experience), logprobs(now, experience)
        assert rollout.sampler_logprobs is not None and experience.importance is not None
        torch.testing.assert_close(rollout.sampler_logprobs[real], theirs[real], atol=1e-5, rtol=0)
        torch.testing.assert_close(rollout.logprobs[real], ours[real], atol=1e-5, rtol=0)
        ratios = (ours - theirs).exp()[real]
        torch.testing.assert_close(experience.importance.weights[real], ratios, atol=1e-4, rtol=1e-4)
        worth = ratios.double().sum() ** 2 / (len(ratios) * ratios.double().square().sum())
        assert metrics[step - 1]["importance/effective"] == pytest.approx(float(worth), abs=1e-5)
    assert metrics[0]["importance/gap"] < 1e-5 and metrics[0]["importance/effective"] == pytest.approx(1.0)
    assert min(step["importance/gap"] for step in metrics[1:]) > 1e-3


def test_without_a_step_ahead_the_first_rollout_and_the_validation_are_the_same(tmp_path: Path) -> None:
    ahead, plain = (make_trainer(tmp_path / name, drawn=d, validation=3) for name, d in (("a", AHEAD), ("b", {})))
    for trainer in (ahead, plain):
        trainer.validate(0)
    first = [trainer.draws.rollout(1) for trainer in (ahead, plain)]
    assert torch.equal(first[0].response_ids, first[1].response_ids)
    scores = [trainer.validate(1) for trainer in (ahead, plain)]
    assert scores[0] == scores[1]
    assert torch.equal(ahead.draws.rollout(2).response_ids, plain.draws.rollout(2).response_ids)  # nothing was updated


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.slow),
        {"lora": True},
        {"kind": "gpt2", "algorithm": GroupAdvantages(), "draft": 4},
    ],
)
def test_a_resumed_run_is_the_uninterrupted_one(
    tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("finegrained_rlhf.rollout.lookup.MATCHED", 1)
    drawn = {**AHEAD, "draft": options.get("draft", 0)}
    kind, lora = options.get("kind", "t5"), LoraConfig(rank=2) if options.get("lora") else None
    save_policy(policy(kind), tmp_path / "start")

    def opened() -> Policy:
        owner = open_policy(tmp_path / "start", lora=lora)
        with torch.no_grad():
            for n, p in owner.model.named_parameters():
                if ".lora_A" in n:
                    p.copy_(torch.linspace(-0.1, 0.1, p.numel()).view_as(p))
        return owner

    def fresh(name: str, processes: Processes | None = None, owner: Policy | None = None) -> PPOTrainer:
        owner = owner or opened()
        path, rest = tmp_path / name, {key: value for key, value in options.items() if key == "algorithm"}
        return make_trainer(path, kind, owner=owner, drawn=drawn, lr=5e-3, processes=processes, **rest)

    whole = fresh("a")
    expected = steps(whole, 1, 4)
    stopped = fresh("b")
    stopped.validate(0)
    steps(stopped, 1, 2)
    checkpoint = save_checkpoint(stopped, tmp_path / "checkpoint")
    resumed = fresh("b")
    resumed.load_state(checkpoint)
    again = save_checkpoint(resumed, tmp_path / "again")  # what waits is what was kept
    name = "rollout_ahead.safetensors"
    assert (again / name).read_bytes() == (checkpoint / name).read_bytes()
    assert steps(resumed, 3, 4) == expected[2:]
    assert all(torch.equal(weights(resumed)[n], weight) for n, weight in weights(whole).items())

    owners = [opened() for _ in range(2)]  # transformers does not load in two threads at once

    def work(processes: Processes) -> tuple[list[dict[str, float]], dict[str, Tensor]]:
        trainer = fresh(f"c{processes.rank}", processes, owners.pop())
        trainer.load_state(checkpoint)
        return steps(trainer, 3, 4), weights(trainer)

    if not options.get("lora"):
        assert_alike((expected[2:], weights(whole)), run_together(2, work))


def test_several_processes_keep_one_file_that_any_number_reads(tmp_path: Path) -> None:
    """Two processes save, one goes on; two prompts on three processes: one has none."""
    whole = make_trainer(tmp_path / "a", owner=policy("t5"), drawn=AHEAD, prompts_per_step=2)
    expected = steps(whole, 1, 2)

    def work(processes: Processes) -> int:
        trainer = make_trainer(
            tmp_path / f"b{processes.rank}", owner=owners.pop(), drawn=AHEAD, prompts_per_step=2, processes=processes
        )
        steps(trainer, 1, 1)
        directory = tmp_path / "checkpoint" if processes.is_main else tmp_path / f"other{processes.rank}"
        save_checkpoint(trainer, directory)
        return sum(1 for _ in directory.glob("rollout_ahead*"))

    owners = [policy("t5") for _ in range(3)]
    assert run_together(3, work) == [1, 0, 0]
    resumed = make_trainer(tmp_path / "c", owner=policy("t5"), drawn=AHEAD, prompts_per_step=2)
    resumed.load_state(tmp_path / "checkpoint")
    assert steps(resumed, 2, 2)[0] == pytest.approx(expected[1], abs=2e-4, rel=1e-4)


def test_a_checkpoint_of_other_prompts_is_drawn_anew_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stopped = make_trainer(tmp_path / "a", drawn=AHEAD)
    steps(stopped, 1, 1)
    checkpoint = save_checkpoint(stopped, tmp_path / "checkpoint")
    for change in ({"seed": 1}, {"samples": 3}):
        resumed = make_trainer(tmp_path / "b", drawn=AHEAD, **change)
        resumed.load_state(checkpoint)
        assert "holds responses to other prompts than step 2 has; it draws anew" in caplog.text
        caplog.clear()
        steps(resumed, 2, 2)
    plain = make_trainer(tmp_path / "c")
    plain.load_state(checkpoint)
    assert plain.draws._ahead is None and not caplog.text


def test_what_cannot_be_ahead_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"rollout.ahead=1 .* rollout.importance_cap .* such as 2.0, got null"):
        RolloutConfig(4, ahead=1)
    with pytest.raises(ConfigError, match="rollout.importance_cap compares"):
        RolloutConfig(4, ahead=1, importance_cap=2.0, logprobs="decode")
    with pytest.raises(ConfigError, match="ahead: expected"):
        RolloutConfig(4, ahead=2, importance_cap=2.0)
    assert RolloutConfig(4, ahead=1, importance_cap=2.0).behaviour == "update"
    assert RolloutConfig(4).behaviour == "auto"
