"""The tolerance of the first step's checks follows the spacing of the numbers that are compared."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ppo_toy import make_trainer

from finegrained_rlhf.core.errors import ConsistencyError
from finegrained_rlhf.training.checks import check_start, largest_logit, start_tolerance


def test_by_hand() -> None:
    assert start_tolerance(True, 50.0) == 1e-5
    # 20 lies between 16 and 32: one unit in the last of 8 bits is 16 / 128 = 0.125
    assert start_tolerance(False, 20.0) == 0.25
    assert start_tolerance(False, 70.0) == 1.0
    assert start_tolerance(False, 1.0) == start_tolerance(False, 0.0) == start_tolerance(False, float("inf")) == 0.1


@pytest.mark.parametrize("size", [0.3, 3.0, 15.9, 16.0, 31.0, 100.0, 1000.0])
def test_one_unit_of_bf16_is_always_allowed(size: float) -> None:
    here = torch.tensor(size, dtype=torch.bfloat16)
    above = torch.nextafter(here, torch.tensor(float("inf"), dtype=torch.bfloat16))
    unit = float(above) - float(here)
    assert unit <= start_tolerance(False, size) <= max(0.1, 2 * unit)


def test_the_tolerance_follows_the_policys_logits(tmp_path: Path) -> None:
    """A head forty times as large has logits forty times as large; by one unit off passes, by more does not."""
    tolerances = {}
    for factor in (1.0, 40.0):
        trainer = make_trainer(tmp_path / str(factor), logprobs="decode")  # not exact, as in bf16
        with torch.no_grad():
            trainer.models.policy.model.lm_head.weight.mul_(factor)
        rollout = trainer.sampler.draw(list(trainer.data.train), [trainer.rollout_config.decoding()], 1)
        memory, ids = trainer.models.policy.encode([rollout.prompts[0]]), rollout.response_ids
        with torch.no_grad():
            states = trainer.models.policy.hidden(memory, torch.tensor([0]), ids[:1, : int(rollout.lengths()[0])])
            largest = float(trainer.models.policy.head(states).abs().max())
        tolerances[factor] = trainer.tolerance(rollout)
        assert largest_logit(trainer.models.policy, rollout) == pytest.approx(largest)
        assert tolerances[factor] == start_tolerance(False, largest)
    allowed = tolerances[40.0]
    assert allowed > max(0.2, tolerances[1.0])
    reference = rollout.logprobs + allowed / 2 * rollout.response_mask
    check_start(rollout, reference, allowed, trainer.processes)
    with pytest.raises(ConsistencyError, match="differs from its reference"):
        check_start(rollout, rollout.logprobs + 1.5 * allowed * rollout.response_mask, allowed, trainer.processes)
    exact = make_trainer(tmp_path / "exact")
    assert exact.tolerance(rollout) == 1e-5
