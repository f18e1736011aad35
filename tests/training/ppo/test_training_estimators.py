"""Advantages of whole steps by hand: every algorithm, every way of credit, with and without KL; and value heads."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from rewarded_toy import MASK, component, identity, rollout, trace
from torch import Tensor

from finegrained_rlhf.core.records import Experience, RewardTrace
from finegrained_rlhf.inference.measure import StepMetrics
from finegrained_rlhf.rl.advantages import generalised_advantages
from finegrained_rlhf.rl.group import EPSILON
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.ppo import GAE, GroupAdvantages
from finegrained_rlhf.training.ppo.config import KLConfig, PPOConfig
from finegrained_rlhf.training.ppo.experience import make_experience, without_advantages
from finegrained_rlhf.training.ppo.metrics import SuppressionWatch, describe_suppression, suppressed_components

NO_KL = PPOConfig(kl=KLConfig(place="loss"))


# a: 2 at tokens 0 and 2 | −1 at 1; b: one number a response, 4 | 0, at the last token.
TRACE = trace(a=component(0.5, [{0: 2.0, 2: 2.0}, {1: -1.0}]), b=component(0.25, [{2: 4.0}, {1: 0.0}]))


def made(algorithm: Any, config: PPOConfig = NO_KL, **given: Any) -> Experience:
    logprobs = torch.tensor([[0.0, 0.5, 0.0], [-1.0, 0.0, 0.0]])
    arguments = {
        "rollout": rollout(MASK, logprobs),
        "trace": TRACE,
        "reference_logprobs": torch.zeros(2, 3),
        "values": None,
        "beta": 0.2,
        "config": config,
        "reduce": identity,
    }
    found = make_experience(**{**arguments, **given}, algorithm=algorithm)  # type: ignore[arg-type]
    whole = sum(found.shares.values(), torch.zeros_like(found.advantages))
    torch.testing.assert_close(whole, found.advantages, atol=1e-6, rtol=0)
    return found


def test_outcomes_with_and_without_kl_in_the_reward() -> None:
    # Scores 0.5·4 + 0.25·4 = 3 and −0.5. Leave one out: ±3.5. The KL sums are 0.5 and −1: −0.1 and +0.2 with β = 0.2.
    found = made(GroupAdvantages())
    assert found.advantages.tolist() == [[3.5, 3.5, 3.5], [-3.5, -3.5, 0.0]]
    assert found.shares["a"].tolist() == [[2.5, 2.5, 2.5], [-2.5, -2.5, 0.0]]
    assert found.shares["b"].tolist() == [[1.0, 1.0, 1.0], [-1.0, -1.0, 0.0]]
    assert (found.values, found.returns) == (None, None)
    found = made(GroupAdvantages(), PPOConfig())
    assert found.advantages[0].tolist() == pytest.approx([3.2] * 3)
    assert found.shares["kl"][0].tolist() == pytest.approx([-0.3] * 3)
    assert found.rewards[0].tolist() == pytest.approx([1.0, -0.1, 2.0])


def test_grpo_divides_by_the_sample_deviation_and_its_shares_by_that_of_the_sum() -> None:
    # Scores 3 and −0.5: mean 1.25, deviation √(2·1.75²) = 2.4749.
    found = made(GroupAdvantages("group_mean", "std"))
    deviation = 1.75 * 2**0.5 + EPSILON
    assert found.advantages[0].tolist() == pytest.approx([1.75 / deviation] * 3)
    assert found.shares["a"][1].tolist() == pytest.approx([-1.25 / deviation, -1.25 / deviation, 0.0])
    assert made(GroupAdvantages("group_mean")).advantages[0].tolist() == [1.75] * 3


def test_gdpo_standardises_components_before_their_weights() -> None:
    # Two numbers standardise to ±1/√2 whatever they are: 0.5 + 0.25 of it, before whitening.
    plain = made(GroupAdvantages("group_mean", "std", by_component=True))
    assert plain.advantages[0].tolist() == pytest.approx([0.75 / 2**0.5] * 3, abs=1e-4)
    assert plain.shares["b"][0].tolist() == pytest.approx([0.25 / 2**0.5] * 3, abs=1e-4)
    # Over two responses, each counted once though the first is longer, mean 0 and variance 1.
    white = made(GroupAdvantages("group_mean", "std", by_component=True, whiten=True))
    assert white.advantages.tolist() == [pytest.approx([1.0] * 3, abs=1e-4), pytest.approx([-1.0, -1.0, 0.0], abs=1e-4)]
    assert float(white.shares["baseline"].abs().max()) < 1e-6


def test_process_supervision_pools_all_segments_or_those_of_a_component() -> None:
    # Together: tokens with rewards 1, 1 + 1 | −0.5 + 0: mean 2.5/3. Apart: a has 2, 2 | −1, mean 1; b 4 | 0, mean 2.
    together = made(GroupAdvantages("group_mean", credit="process"))
    mean = 2.5 / 3
    assert together.advantages[0].tolist() == pytest.approx([3 - 2 * mean, 2 - mean, 2 - mean])
    assert together.advantages[1].tolist() == pytest.approx([-0.5 - mean, -0.5 - mean, 0.0])
    apart = made(GroupAdvantages("group_mean", credit="process", by_component=True))
    assert apart.shares["a"].tolist() == [[1.0, 0.5, 0.5], [-1.0, -1.0, 0.0]]
    assert apart.shares["b"].tolist() == [[0.5, 0.5, 0.5], [-0.5, -0.5, 0.0]]
    std = made(GroupAdvantages("group_mean", "std", "process", by_component=True))
    assert std.shares["a"][0].tolist() == pytest.approx([1 / 3**0.5, 0.5 / 3**0.5, 0.5 / 3**0.5], abs=1e-4)  # σ = √3


def test_returns_start_at_the_token_and_take_the_penalty_token_by_token() -> None:
    # Apart, against the other response. a still earns 4, 2, 2 | −1, −1 in segments 0, 1, 1 | 0, 0; the other one earns
    # −1, 0, 0 | 4, 4 from there on.
    found = made(GroupAdvantages(credit="returns", by_component=True), PPOConfig())
    assert found.shares["a"].tolist() == [[2.5, 1.0, 1.0], [-2.5, -2.5, 0.0]]
    assert found.shares["b"].tolist() == [[1.0, 1.0, 1.0], [-1.0, -1.0, 0.0]]
    # KL to go −0.1, −0.1, 0 | 0.2, 0, at tokens 0, 1, 2 | 0, 1 against each other; the other has no third token.
    assert found.shares["kl"][0].tolist() == pytest.approx([-0.3, -0.1, 0.0])
    assert found.shares["kl"][1].tolist() == pytest.approx([0.3, 0.1, 0.0])


def test_reinforce_takes_the_mean_of_the_batch_over_processes() -> None:
    calls: list[Tensor] = []

    def reduce(tensor: Tensor) -> Tensor:
        calls.append(tensor)
        return tensor + torch.tensor([10.0, 1.0])  # another process: one response that earned 10

    a_alone = trace(a=component(1.0, [{2: 2.0}, {1: -1.0}]))
    found = made(GroupAdvantages("batch_mean"), trace=a_alone, reduce=reduce)
    mean = (2 - 1 + 10) / 3
    assert found.advantages[0].tolist() == pytest.approx([2 - mean] * 3)
    assert len(calls) == 1
    single = made(GroupAdvantages("batch_mean"), rollout=rollout(MASK, groups=[0, 1]), trace=a_alone)
    assert single.advantages[:, 0].tolist() == [1.5, -1.5]


@pytest.mark.parametrize(
    ("credit", "position", "by_component"),
    list(itertools.product(("outcome", "process", "returns"), ("segment", "share"), (False, True))),
)
def test_groups_do_not_see_each_other(credit: Any, position: Any, by_component: bool) -> None:
    algorithm = GroupAdvantages("group_mean", "std", credit, position, by_component)
    two = rollout(torch.cat([MASK, MASK]), groups=[0, 0, 1, 1])
    first, second = [{0: 2.0, 2: 2.0}, {1: -1.0}], [{1: 9.0}, {0: -3.0, 1: 1.0}]
    wide = torch.cat([MASK, MASK])
    both = trace(
        a=component(0.5, first + second, wide), b=component(2.0, [{2: 1.0}, {1: 5.0}, {2: 0.0}, {1: 0.5}], wide)
    )
    alone = trace(a=component(0.5, first), b=component(2.0, [{2: 1.0}, {1: 5.0}]))
    zeros = torch.zeros(4, 3)
    whole = made(algorithm, rollout=two, trace=both, reference_logprobs=zeros)
    part = made(algorithm, rollout=rollout(MASK), trace=alone)
    torch.testing.assert_close(whole.advantages[:2], part.advantages, atol=1e-6, rtol=0)
    assert float(whole.advantages.abs().max()) > 0.1


def test_several_heads_give_the_weighted_sum_of_their_advantages() -> None:
    values = torch.tensor([[[1.0, 2.0, 0.5], [0.0, 1.0, 0.0], [2.0, 0.0, 0.1]], [[1.0, 1.0, 1.0]] * 3])
    config = PPOConfig(lambda_=0.9, discount=0.95, whiten_rewards=False, whiten_advantages=False)
    found = made(GAE(per_component=True), config, values=values)
    expected = torch.zeros(2, 3)
    kl = torch.tensor([[0.0, -0.1, 0.0], [0.2, 0.0, 0.0]])
    heads = ((0.5, TRACE.components["a"].raw), (0.25, TRACE.components["b"].raw), (1.0, kl))
    assert found.heads is not None
    for k, (weight, rewards) in enumerate(heads):
        advantages, returns = generalised_advantages(rewards, values[:, :, k], MASK, discount=0.95, lambda_=0.9)
        expected += weight * advantages
        torch.testing.assert_close(found.heads.returns[:, :, k], returns)
    torch.testing.assert_close(found.advantages, expected)
    assert found.values is not None and found.returns is not None
    total = (values * torch.tensor([0.5, 0.25, 1.0])).sum(dim=2) * MASK
    torch.testing.assert_close(found.values, total)
    torch.testing.assert_close(found.returns - found.values, found.advantages)
    # One head that says the weighted sum has the same advantages.
    torch.testing.assert_close(made(GAE(), config, values=total).advantages, found.advantages)


def test_heads_share_one_scale() -> None:
    values = torch.zeros(2, 3, 2)
    config = PPOConfig(lambda_=1.0, whiten_advantages=False, kl=KLConfig(place="loss"))
    found = made(GAE(per_component=True), config, values=values)
    deviation = float(TRACE.total[MASK.bool()].double().std(correction=0))
    assert found.heads is not None
    to_go = torch.tensor([[4.0, 2.0, 2.0], [-1.0, -1.0, 0.0]]) / deviation
    torch.testing.assert_close(found.heads.returns[:, :, 0], to_go, atol=1e-5, rtol=0)


@pytest.mark.parametrize("weight", [0.5, 0.0])
def test_a_head_learns_nothing_behind_a_closed_gate_whatever_the_weight(weight: float) -> None:
    """A schedule may begin at weight 0: what the head learns then must be what it will be paid for later."""
    gated = replace(component(weight, [{0: 2.0, 2: 2.0}, {1: -1.0}]), gate=(False, True))
    gated = replace(gated, weighted=gated.weighted * torch.tensor([[0.0], [1.0]]))
    config = PPOConfig(lambda_=1.0, whiten_rewards=False, whiten_advantages=False, kl=KLConfig(place="loss"))
    found = made(GAE(per_component=True), config, trace=trace(a=gated), values=torch.zeros(2, 3, 1))
    assert found.heads is not None
    assert found.heads.returns[:, :, 0].tolist() == [[0.0, 0.0, 0.0], [-1.0, -1.0, 0.0]]


@pytest.mark.parametrize("white", [False, True])
def test_gae_has_exact_shares(white: bool) -> None:
    """A change of one component's rewards, whitening held fixed, changes its share and no other."""
    config = PPOConfig(lambda_=0.8, whiten_rewards=False, whiten_advantages=white)
    values = torch.tensor([[1.0, 0.5, 0.2], [0.3, 0.1, 0.0]])
    found = made(GAE(), config, values=values)
    assert list(found.shares) == ["a", "b", "kl", "baseline"]
    factor = 1.0
    if white:
        plain = made(GAE(), PPOConfig(lambda_=0.8, whiten_rewards=False, whiten_advantages=False), values=values)
        factor = float(found.shares["a"][0, 0] / plain.shares["a"][0, 0])
        assert factor != pytest.approx(1.0, abs=0.01)
    # Σ_l λ^l r_{t+l} of a's weighted rewards 1, 0, 1.
    expected = [factor * (1 + 0.64), factor * 0.8, factor]
    assert found.shares["a"][0].tolist() == pytest.approx(expected, abs=1e-5)


def test_no_advantages_are_zeros_and_have_no_shares() -> None:
    found = without_advantages(rollout(MASK), TRACE, torch.zeros(2, 3))
    assert not found.advantages.any() and not found.shares


# Suppressed components ---------------------------------------------------------------------------------------------


def suppression(advantages: Tensor, parts: RewardTrace) -> dict[str, float]:
    metrics = StepMetrics()
    zeros = torch.zeros_like(advantages)
    mask = torch.ones_like(advantages, dtype=torch.long)
    describe_suppression(Experience(rollout(mask), parts, zeros, None, zeros, advantages, None), metrics)
    return metrics.reduce(Processes())


def test_satisfied_and_suppressed_by_hand() -> None:
    mask = torch.ones(3, 4, dtype=torch.long)
    parts = trace(
        good=component(1.0, [{1: 1.0, 3: 1.0}, {0: 1.0, 3: -1.0}, {3: 1.0}], mask),
        bad=component(-1.0, [{3: 1.0}, {3: 2.0}, {3: 3.0}], mask),
    )
    # 1: segments whose tokens sum to 1 and −3; 2: one with −1, one that is not satisfied; 3: no signal.
    advantages = torch.tensor([[2.0, -1.0, -3.0, 0.0], [-1.0, 9.0, 9.0, 9.0], [0.0, 0.0, 0.0, 0.0]])
    found = suppression(advantages, parts)
    assert found["satisfied/good"] == 1.0 and found["suppressed/good"] == pytest.approx(2 / 3)
    assert found["satisfied/bad"] == 0.0 and found["suppressed/bad"] == 0.0


def test_it_takes_more_than_half_of_enough_segments_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    def step(share: float, satisfied: float = 5.0) -> dict[str, float]:
        names = {"satisfied/a": satisfied, "suppressed/a": share, "satisfied/unfinished": 9.0}
        return {**names, "suppressed/unfinished": 1.0, "episodes_per_step": 8.0}

    assert suppressed_components([step(0.9, 1.0)]) == {}  # eight segments are too few
    assert suppressed_components([step(0.5), step(0.6)]) == {}  # 0.55 of 80 may be chance
    assert suppressed_components([step(0.8), step(0.6)]) == {"a": (pytest.approx(0.7), 80.0)}
    watch = SuppressionWatch(Processes())
    for _ in range(3):
        watch.warn(step(1.0))
    told = [record.getMessage() for record in caplog.records if "suppressed" in record.getMessage()]
    assert len(told) == 1 and "a: 100% of 80 segments" in told[0]
