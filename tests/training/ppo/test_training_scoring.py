"""Where behaviour log-probabilities come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ppo_toy import make_trainer

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.records import Rollout
from finegrained_rlhf.rollout import RolloutConfig
from finegrained_rlhf.training.ppo.trainer import PPOTrainer


def counted(trainer: PPOTrainer) -> list[bool]:
    """Whether gradients were wanted, for every pass of the policy's decoder."""
    passes: list[bool] = []
    norm = trainer.models.policy.model.decoder.final_layer_norm
    norm.register_forward_hook(lambda m, i, o: passes.append(torch.is_grad_enabled()) if o.dim() == 3 else None)
    return passes


def off_by(trainer: PPOTrainer, error: float) -> None:
    """Make the decode's log-probabilities wrong."""
    decode: Any = trainer.sampler.engine.decode

    def wrong(*arguments: Any, **names: Any) -> Rollout:
        rollout = decode(*arguments, **names)
        return Rollout(**{**vars(rollout), "logprobs": rollout.logprobs + error * rollout.response_mask})

    trainer.sampler.engine.decode = wrong  # type: ignore[method-assign]


def test_equal_ones_are_used_and_the_pass_is_saved(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, epochs=1)  # two micro-batches
    off_by(trainer, 0.0)
    passes = counted(trainer)
    trainer.train_step(1)
    assert passes == [False, False, True, True]  # the first rollout is scored both ways
    second = trainer.train_step(2)
    assert passes[4:] == [True, True]
    assert second["logprob_gap"] < 1e-5


def test_unequal_ones_are_replaced_for_good(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, epochs=1)
    off_by(trainer, 2e-5)
    passes = counted(trainer)
    results = [trainer.train_step(step) for step in (1, 2)]
    assert passes == [False, False, True, True] * 2
    assert all(result["logprob_gap"] < 1e-6 for result in results)
    trainer.state_to_save()(tmp_path)
    resumed = make_trainer(tmp_path / "again", epochs=1)
    trainer.model_to_save()(tmp_path / "policy")
    resumed.load_state(tmp_path)
    passes = counted(resumed)
    resumed.train_step(3)
    assert passes == [False, False, True, True]  # decided once for the whole run


@pytest.mark.parametrize(("source", "gap"), [("decode", 0.03), ("update", 0.0)])
def test_the_choice_can_be_made(tmp_path: Path, source: str, gap: float) -> None:
    trainer = make_trainer(tmp_path, logprobs=source)
    off_by(trainer, 0.03)
    result = trainer.train_step(1)
    assert result["logprob_gap"] == pytest.approx(gap, abs=1e-6)


def test_a_shared_trunk_needs_the_pass_for_its_values(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, shared=True, epochs=1)
    passes = counted(trainer)
    trainer.train_step(1)
    assert passes == [False, False, True, True]
    assert trainer._scorer.from_decode is False


def test_values_without_the_policy_are_the_same_values(tmp_path: Path) -> None:
    metrics = []
    for source in ("decode", "update"):
        trainer = make_trainer(tmp_path / source, logprobs=source)
        metrics.append([trainer.train_step(step) for step in (1, 2)])
    for one, other in zip(*metrics, strict=True):
        for name in ("value", "kl", "loss/policy", "loss/value", "entropy", "gradient_norm"):
            assert one[name] == pytest.approx(other[name], abs=2e-5), name
        assert one["entropy"] > 0.1


def test_an_unknown_source_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"logprobs: expected one of auto, decode, update"):
        RolloutConfig(1, logprobs="both")  # type: ignore[arg-type]
