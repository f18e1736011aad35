"""Rewards, advantages and targets of a step; the order of its prompts; the means it reports."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from rl_toy import prompts
from torch import Tensor

from finegrained_rlhf.core.errors import ConfigError, ConsistencyError
from finegrained_rlhf.core.records import ComponentTrace, RewardTrace, Rollout, Sample, SegmentScores
from finegrained_rlhf.inference.measure import StepMetrics, repetition
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.order import items_of_step
from finegrained_rlhf.training.ppo.config import KLConfig, PPOConfig
from finegrained_rlhf.training.ppo.experience import check_components_add_up, make_experience

MASK = torch.tensor([[1, 1, 1], [1, 1, 0]])
PLAIN = PPOConfig(discount=1.0, lambda_=1.0, whiten_rewards=False, whiten_advantages=False)


def identity(tensor: Tensor) -> Tensor:
    return tensor


def rollout(logprobs: Tensor) -> Rollout:
    asked = prompts(count=2)
    index = torch.arange(2)
    none = torch.zeros(2, dtype=torch.long)
    ids = torch.tensor([[5, 6, 1], [7, 1, 0]])
    return Rollout(
        asked, none[:, None], none[:, None], index, none, none, (Sample(1),), ids, MASK, logprobs, ["", ""], [(), ()]
    )


def trace(*weighted: Tensor) -> RewardTrace:
    nothing = SegmentScores([(), ()], [(), ()])
    parts = {f"c{i}": ComponentTrace(nothing, 1.0, w, w, w, [(), ()], [(), ()]) for i, w in enumerate(weighted)}
    return RewardTrace(parts, torch.stack(weighted).sum(dim=0))


LOGPROBS = torch.tensor([[-1.0, -2.0, -1.0], [-3.0, -1.0, 0.0]])
REFERENCE = torch.tensor([[-1.5, -2.0, -0.5], [-1.0, -1.0, 0.0]])  # log ratios 0.5, 0, −0.5 | −2, 0
REWARDS = torch.tensor([[0.0, 1.0, 2.0], [0.0, -1.0, 0.0]])
VALUES = torch.tensor([[1.0, 1.0, 1.0], [2.0, 0.0, 9.0]])


def experience(config: PPOConfig, beta: float = 0.2, reduce: Any = identity) -> Any:
    return make_experience(
        rollout(LOGPROBS), trace(REWARDS), REFERENCE, VALUES, beta=beta, config=config, reduce=reduce
    )


def test_by_hand_without_whitening() -> None:
    # r = components − 0.2·(log π − log π_ref): (−0.1, 1, 2.1) and (0.4, −1); λ = γ = 1: returns are sums of rewards.
    result = experience(PLAIN)
    torch.testing.assert_close(result.rewards, torch.tensor([[-0.1, 1.0, 2.1], [0.4, -1.0, 0.0]]))
    torch.testing.assert_close(result.returns, torch.tensor([[3.0, 3.1, 2.1], [-0.6, -1.0, 0.0]]))
    torch.testing.assert_close(result.advantages, torch.tensor([[2.0, 2.1, 1.1], [-2.6, -1.0, 0.0]]))
    torch.testing.assert_close(result.values, torch.tensor([[1.0, 1.0, 1.0], [2.0, 0.0, 0.0]]))


def test_whitening_of_rewards_takes_the_penalty_in_and_keeps_the_mean() -> None:
    rewards = np.array([-0.1, 1.0, 2.1, 0.4, -1.0])
    expected = (rewards - rewards.mean()) / rewards.std() + rewards.mean()
    result = experience(replace(PLAIN, whiten_rewards=True))
    np.testing.assert_allclose(result.rewards[MASK.bool()].numpy(), expected, atol=1e-6)
    assert result.rewards[1, 2] == 0
    # The target is made of the whitened rewards, and the padding stays out of it.
    assert float(result.returns[0, 0]) == pytest.approx(expected[:3].sum(), abs=1e-6)
    assert float(result.returns[1, 0]) == pytest.approx(expected[3:].sum(), abs=1e-6)


def test_whitening_of_advantages_leaves_the_targets_alone() -> None:
    result = experience(replace(PLAIN, whiten_advantages=True))
    plain = np.array([2.0, 2.1, 1.1, -2.6, -1.0])
    np.testing.assert_allclose(result.advantages[MASK.bool()].numpy(), (plain - plain.mean()) / plain.std(), atol=1e-6)
    assert result.advantages[1, 2] == 0
    torch.testing.assert_close(result.returns, experience(PLAIN).returns)


def test_statistics_are_reduced() -> None:
    calls: list[int] = []

    def reduce(tensor: Tensor) -> Tensor:
        calls.append(tensor.numel())
        return tensor

    experience(PPOConfig(), reduce=reduce)
    assert len(calls) == 4  # mean and variance of rewards and of advantages


def test_the_truncated_target_by_hand() -> None:
    """The rewards still to come; neither λ nor the values enter."""
    result = experience(replace(PLAIN, lambda_=0.5, value_target="truncated"))
    torch.testing.assert_close(result.returns, torch.tensor([[3.0, 3.1, 2.1], [-0.6, -1.0, 0.0]]))
    torch.testing.assert_close(result.advantages, experience(replace(PLAIN, lambda_=0.5)).advantages)


def test_beta_zero_means_no_penalty() -> None:
    torch.testing.assert_close(experience(PLAIN, beta=0.0).rewards, REWARDS)


def test_components_must_add_up() -> None:
    good = trace(REWARDS, 2 * REWARDS)
    check_components_add_up(good)
    with pytest.raises(ConsistencyError, match="differ from the trained reward by 0.5"):
        check_components_add_up(replace(good, total=good.total + 0.5 * torch.eye(3)[:2]))
    with pytest.raises(ConsistencyError, match="differ"):
        check_components_add_up(replace(good, total=REWARDS))  # a component was forgotten
    with pytest.raises(ConsistencyError, match="differ"):
        make_experience(
            rollout(LOGPROBS),
            replace(good, total=REWARDS),
            REFERENCE,
            VALUES,
            beta=0.0,
            config=PLAIN,
            reduce=identity,
        )


def test_settings_are_checked() -> None:
    for wrong in (
        {"epochs": 0},
        {"micro_batch_prompts": 0},
        {"discount": 1.1},
        {"lambda_": -0.1},
        {"clip": 0.0},
        {"value_clip": 0.0},
        {"value_coefficient": -1.0},
        {"value_target": "other"},
        {"loss_average": "other"},
    ):
        with pytest.raises(ConfigError, match=f"{next(iter(wrong))}: expected"):
            PPOConfig(**wrong)
    for wrong in ({"beta": -1.0}, {"controller": "other"}, {"patience": 0}, {"limit": 0.0}):
        with pytest.raises(ConfigError, match=f"{next(iter(wrong))}: expected|kl.beta"):
            KLConfig(**wrong)
    with pytest.raises(ConfigError, match="adaptive KL"):
        KLConfig(controller="adaptive", target=0.0)


# Order of prompts -----------------------------------------------------------------------------------------------


def test_every_epoch_is_a_permutation_and_nothing_is_left_out() -> None:
    items = list(range(10))
    stream = [item for step in range(1, 11) for item in items_of_step(items, step, 3, seed=4)]
    epochs = [stream[i : i + 10] for i in (0, 10, 20)]
    assert all(sorted(epoch) == items for epoch in epochs)  # 10 steps of 3 are exactly 3 epochs
    assert epochs[0] != epochs[1] != epochs[2] and items not in epochs


def test_a_step_is_a_function_of_its_number_and_the_seed() -> None:
    items = [f"i{k}" for k in range(7)]
    assert items_of_step(items, 5, 4, seed=1) == items_of_step(items, 5, 4, seed=1)
    assert items_of_step(items, 5, 4, seed=1) != items_of_step(items, 5, 4, seed=2)
    # Steps of two walk the same path as steps of four.
    assert items_of_step(items, 3, 4, seed=1) == [x for s in (5, 6) for x in items_of_step(items, s, 2, seed=1)]
    assert len(items_of_step(items[:2], 1, 5, seed=1)) == 5  # more prompts a step than there are


# Means ----------------------------------------------------------------------------------------------------------


class TwoProcesses(Processes):
    """This process and another one that has seen `other`."""

    def __init__(self, other: list[tuple[float, float]]) -> None:
        self.other = torch.tensor(other, dtype=torch.float64)

    def sum_(self, tensor: Tensor) -> Tensor:
        return tensor + self.other


def test_means_are_weighted_by_their_counts_over_processes() -> None:
    metrics = StepMetrics()
    metrics.add("a", torch.tensor(4.0), torch.tensor(2))
    metrics.add("b", 0.0, 0)
    metrics.add("a", 1.0, 1)
    assert metrics.reduce(TwoProcesses([(15.0, 2.0), (0.0, 0.0)])) == {"a": 4.0, "b": 0.0}  # (4 + 1 + 15) / 5
    assert StepMetrics().reduce(Processes()) == {}


def test_repetition_by_hand() -> None:
    ids = torch.tensor([[1, 2, 3, 1, 2, 3, 1], [1, 2, 3, 4, 5, 6, 7], [4, 4, 4, 4, 4, 9, 9], [4, 4, 4, 4, 4, 4, 4]])
    mask = (torch.arange(7) < torch.tensor([[7], [7], [4], [2]])).long()
    # 123 231 312 | 123 231: two of five occurred before; 444 twice: one of two; two tokens hold no trigram.
    assert repetition(ids, mask).tolist() == pytest.approx([0.4, 0.0, 0.5, 0.0])
    assert repetition(ids, mask, n=1).tolist() == pytest.approx([4 / 7, 0.0, 3 / 4, 1 / 2])
    assert repetition(ids[:0], mask[:0]).shape == (0,)
    assert not math.isnan(float(repetition(ids, torch.zeros_like(mask)).sum()))
