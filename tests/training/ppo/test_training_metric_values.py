"""What `metrics.jsonl` says of a PPO step, every number of a small step by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rl_toy import prompts
from torch import Tensor

from finegrained_rlhf.core.records import ComponentTrace, Experience, RewardTrace, Rollout, Sample, SegmentScores
from finegrained_rlhf.inference.measure import StepMetrics
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.ppo.metrics import explained_variance, step_metrics

EOS = 1
IDS = torch.tensor([[5, 5, 5, 5, EOS], [7, 8, 9, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
POLICY: Any = SimpleNamespace(eos_ids=(EOS,), tokenizer=None)


def identity(tensor: Tensor) -> Tensor:
    return tensor


def a_step() -> Experience:
    """Two responses to a prompt, of five tokens (one ends) and of three; one reward each: 2 and −1, weight 1/2."""
    index = torch.zeros(2, dtype=torch.long)
    logprobs = torch.tensor([[-1.0, -1.0, -1.0, -2.0, -1.0], [-2.0, -2.0, -1.0, 9.0, 9.0]])
    reference = torch.tensor([[-1.5, -1.0, -0.5, -2.0, -1.0], [-3.0, -2.5, -1.0, -9.0, 0.0]])
    rollout = Rollout(
        prompts(count=1), IDS[:1, :2], MASK[:1, :2], index, index, index, (Sample(2),), IDS, MASK, logprobs,
        ["", ""], [(), ()],
    )  # fmt: skip
    raw = torch.zeros(2, 5)
    raw[0, 4], raw[1, 2] = 2.0, -1.0
    scores = SegmentScores([((0, 0),), ((0, 0),)], [(2.0,), (-1.0,)], whole_response=True)
    component = ComponentTrace(scores, 0.5, raw, raw, 0.5 * raw, [(2.0,), (-1.0,)], [(4,), (2,)])
    trace = RewardTrace({"words": component}, component.weighted)
    values = torch.tensor([[1.0, 2.0, 3.0, 0.0, 0.0], [0.0, 1.0, 1.0, 0.0, 0.0]])
    returns = torch.tensor([[2.0, 2.0, 4.0, 0.0, 1.0], [1.0, -1.0, -1.0, 0.0, 0.0]])
    return Experience(rollout, trace, reference, values, 0.5 * raw, torch.zeros(2, 5), returns)


def measured(experience: Experience) -> dict[str, float]:
    return step_metrics(experience, POLICY, StepMetrics(), Processes(), step=3, beta=0.2, lr=1e-4)


def test_every_number_of_a_step_by_hand() -> None:
    found = measured(a_step())
    # returns 2, 2, 4, 0, 1, 1, −1, −1: mean 1, squares 1 + 1 + 9 + 1 + 0 + 0 + 4 + 4 = 20
    # less values 1, 0, 1, 0, 1, 1, −2, −2: mean 0, squares 1 + 0 + 1 + 0 + 1 + 1 + 4 + 4 = 12
    assert found["explained_variance"] == pytest.approx(1 - 12 / 20)
    assert (found["return"], found["value"]) == (1.0, 1.0)  # 8 tokens: 8 and 8
    assert found["kl"] == pytest.approx((0.5 - 0.5 + 1.0 + 0.5) / 2)  # nats a response
    assert found["reward/words/raw"] == 0.5 and found["reward/words/weighted"] == found["reward/total"] == 0.25
    assert (found["reward/words/weight"], found["segments/words"]) == (0.5, 1.0)
    assert (found["response_length"], found["eos_rate"]) == (4.0, 0.5)
    assert found["repetition"] == pytest.approx((1 / 3 + 0) / 2)  # 555 555 55</s>: one of three came before
    assert (found["alignment"], found["alignment_inside"]) == (1.0, 0.0)
    assert (found["episodes"], found["episodes_per_step"], found["processes"]) == (6.0, 2.0, 1)
    assert (found["beta"], found["lr"], found["response_tokens"]) == (0.2, 1e-4, 8.0)


def test_explained_variance_at_its_limits() -> None:
    step = a_step()
    assert step.returns is not None
    assert explained_variance(replace(step, values=step.returns + 3.0), identity) == pytest.approx(
        1.0
    )  # but for a shift
    assert explained_variance(replace(step, values=torch.zeros(2, 5)), identity) == pytest.approx(0.0)
    assert explained_variance(replace(step, values=-step.returns), identity) == pytest.approx(-3.0)  # error 2 G
    assert explained_variance(replace(step, returns=torch.full((2, 5), 7.0)), identity) == 0.0  # nothing to explain


def test_the_exact_divergence_takes_the_metrics_place() -> None:
    kl = torch.tensor([[0.1, 0.2, 0.0, 0.0, 0.0], [0.5, 0.0, 0.0, 0.0, 0.0]])
    found = measured(replace(a_step(), kl=kl))
    assert (found["kl"], found["log_ratio"]) == (pytest.approx(0.4), pytest.approx(0.75))
    assert "explained_variance" not in measured(replace(a_step(), values=None, returns=None))
