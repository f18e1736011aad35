"""The gradient that each algorithm has on average, by enumeration: what is unbiased, and what is not by how much.

All responses of a policy by table are drawn in pairs, each pair with its probability, so no number here is sampled.
Rewards and values are multiples of 1/16: fp32 holds what an unbiased algorithm makes of them exactly.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from enumeration_toy import TablePolicy
from rl_toy import prompts
from torch import Tensor

from finegrained_rlhf.core.records import ComponentTrace, RewardTrace, Rollout, Sample, SegmentScores
from finegrained_rlhf.training.ppo import GAE, GroupAdvantages
from finegrained_rlhf.training.ppo.advantages import AdvantageEstimator, RewardedRollout
from finegrained_rlhf.training.ppo.config import PPOConfig

Response = tuple[int, ...]
Paid = Callable[[Response], dict[int, float]]
Rewards = Mapping[str, tuple[float, Paid]]
TABLE, SHORT = TablePolicy(longest=3), TablePolicy(longest=2)
REFERENCE = torch.randn(TABLE.logits.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
BETA = 0.25
PLAIN = PPOConfig(lambda_=1.0, whiten_rewards=False, whiten_advantages=False)


def words(response: Response) -> dict[int, float]:
    """Every token but the end is a segment: 1 for token 0, −1/2 for token 1."""
    return {t: (1.0, -0.5)[token] for t, token in enumerate(response) if token != TABLE.end}


def joined_words(response: Response) -> dict[int, float]:
    """Token 1 goes on with a word before it of one token: whether a word ends is decided by the token behind it.

    As a full stop after a digit may end a sentence or go on with a number. A word of two tokens is paid 1, else −1/2.
    """
    ends: list[list[int]] = []
    for t, token in enumerate(response):
        if token == TABLE.end:
            continue
        if token == 1 and ends and len(ends[-1]) == 1:
            ends[-1].append(t)
        else:
            ends.append([t])
    return {word[-1]: 1.0 if len(word) == 2 else -0.5 for word in ends}


def whole(response: Response) -> dict[int, float]:
    """One number a response, at its last token, that is no sum over tokens."""
    return {len(response) - 1: float(len(set(response)) ** 2)}


def component(rows: Sequence[Mapping[int, float]], width: int, weight: float) -> ComponentTrace:
    raw = torch.zeros(len(rows), width)
    for row, paid in enumerate(rows):
        for token, value in paid.items():
            raw[row, token] = value
    values = [tuple(paid.values()) for paid in rows]
    spans = [tuple((t, t + 1) for t in paid) for paid in rows]
    return ComponentTrace(
        SegmentScores(spans, values), weight, raw, raw, weight * raw, values, [tuple(p) for p in rows]
    )


def rewarded(table: TablePolicy, responses: Sequence[Response], rewards: Rewards, penalised: bool) -> RewardedRollout:
    """Responses in groups of two, with values that depend on what comes before a token alone."""
    width = max(map(len, responses))
    mask = torch.tensor([[int(t < len(row)) for t in range(width)] for row in responses])
    ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in responses])
    index, zeros = torch.arange(len(responses)) // 2, torch.zeros(len(responses), dtype=torch.long)
    rollout = Rollout(
        prompts(count=1) * (len(responses) // 2), ids[:, :1], ids[:, :1], index, zeros, zeros, (Sample(2),),
        ids, mask, torch.zeros(mask.shape), [""] * len(responses), [()] * len(responses),
    )  # fmt: skip
    parts = {
        name: component([paid(row) for row in responses], width, weight) for name, (weight, paid) in rewards.items()
    }
    total = torch.stack([part.weighted for part in parts.values()]).sum(dim=0)
    values = torch.tensor([[(3 * sum(row[:t]) - 2 * t) / 16 for t in range(width)] for row in ids.tolist()])
    penalty = None
    if penalised:
        penalty = torch.zeros(mask.shape)
        for number, row in enumerate(responses):
            penalty[number, : len(row)] = BETA * (table.logprobs(row, table.logits) - table.logprobs(row, REFERENCE))
    return RewardedRollout(rollout, RewardTrace(parts, total), penalty, values)


def gradients(
    algorithm: AdvantageEstimator,
    rewards: Rewards,
    config: PPOConfig = PLAIN,
    *,
    drawn: float = 1.0,
    scored: float = 1.0,
    penalised: bool = False,
) -> tuple[Tensor, Tensor]:
    """Of half of Σ_t A_t log π(a_t) over a pair, on average, and of the reward that is expected.

    Args:
        algorithm: makes A; where it compares with the batch, a batch is one pair.
        rewards: weight and reward of each component.
        config: of GAE.
        drawn: temperature at which the pairs are drawn, and at which the reward is expected.
        scored: temperature of the distribution that is differentiated.
        penalised: whether β(log π − log π_ref) is taken from the rewards of tokens, and β·KL from the expected reward.
    """
    alone = getattr(algorithm, "whiten", False) or getattr(algorithm, "baseline", "") == "batch_mean"
    table = SHORT if alone else TABLE
    every = table.responses
    chance = {row: float(table.logprobs(row, table.logits, drawn).sum().exp()) for row in every}
    pairs = list(itertools.product(every, repeat=2))
    factors = {row: torch.zeros(len(row), dtype=torch.float64) for row in every}
    for batch in [[pair] for pair in pairs] if alone else [pairs]:
        given = rewarded(table, [row for pair in batch for row in pair], rewards, penalised)
        advantages = algorithm.estimate(given, config, lambda x: x).advantages.double()
        for number, pair in enumerate(batch):
            weight = chance[pair[0]] * chance[pair[1]] / 2
            for row, own in zip(pair, advantages[2 * number : 2 * number + 2], strict=True):
                factors[row] += weight * own[: len(row)]
    logits = table.logits.clone().requires_grad_()
    loss, worth = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for row in every:
        loss = loss + (factors[row] * table.logprobs(row, logits, scored)).sum()
        likelihood = table.logprobs(row, logits, drawn).sum()
        earned = sum(weight * sum(paid(row).values()) for weight, paid in rewards.values())
        kl = likelihood - table.logprobs(row, REFERENCE).sum() if penalised else 0.0
        worth = worth + likelihood.exp() * (earned - BETA * kl)
    (found,), (true,) = torch.autograd.grad(loss, logits), torch.autograd.grad(worth, logits)
    return found, true


def error(found: Tensor, true: Tensor, factor: float = 1.0) -> float:
    return float((found - factor * true).norm() / (factor * true).norm())


def at_best(found: Tensor, true: Tensor) -> float:
    """The relative error that no step size takes away."""
    return error(found * (found * true).sum() / (found * found).sum(), true)


ONE: Rewards = {"words": (1.0, words)}
AHEAD: Rewards = {"words": (1.0, joined_words)}
TWO: Rewards = {"words": (0.5, words), "whole": (0.25, whole)}

UNBIASED = {
    # With two samples, a mean that the response itself is in leaves half of the gradient: all of its direction.
    "rloo": (GroupAdvantages(), (ONE, AHEAD, TWO), 1.0),
    "rloo by component": (GroupAdvantages(by_component=True), (TWO,), 1.0),
    "dr_grpo": (GroupAdvantages("group_mean"), (ONE, AHEAD, TWO), 0.5),
    "mean of the batch": (GroupAdvantages("batch_mean"), (AHEAD,), 0.5),
    "returns": (GroupAdvantages(credit="returns"), (ONE, TWO), 1.0),
    "returns by component": (GroupAdvantages(credit="returns", by_component=True), (TWO,), 1.0),
    "returns of dr_grpo": (GroupAdvantages("group_mean", credit="returns"), (ONE, TWO), 0.5),
    "ppo with lambda 1, whatever the values": (GAE(), (ONE, TWO), 1.0),
}


@pytest.mark.parametrize("name", UNBIASED)
def test_what_is_unbiased_is_so_exactly(name: str) -> None:
    algorithm, rewards, factor = UNBIASED[name]
    for paid in rewards:
        assert error(*gradients(algorithm, paid), factor) < 1e-12


BIASED: dict[str, tuple[AdvantageEstimator, Rewards, PPOConfig, float]] = {
    "returns, segments that look ahead": (GroupAdvantages(credit="returns"), AHEAD, PLAIN, 0.1),
    "returns of dr_grpo, looking ahead": (GroupAdvantages("group_mean", credit="returns"), AHEAD, PLAIN, 0.1),
    "ppo, segments that look ahead": (GAE(), AHEAD, PLAIN, 0.1),
    "returns at one share": (GroupAdvantages(credit="returns", position="share"), ONE, PLAIN, 3e-4),
    "returns at one share, segments that look ahead": (
        GroupAdvantages(credit="returns", position="share"), AHEAD, PLAIN, 0.1,
    ),
    "returns less the mean of the batch": (GroupAdvantages("batch_mean", credit="returns"), ONE, PLAIN, 0.03),
    "process": (GroupAdvantages(credit="process"), ONE, PLAIN, 0.1),
    "process, own ones included": (GroupAdvantages("group_mean", credit="process"), ONE, PLAIN, 0.9),
    "process less the mean of the batch": (GroupAdvantages("batch_mean", credit="process"), ONE, PLAIN, 0.5),
    "grpo": (GroupAdvantages("group_mean", "std"), ONE, PLAIN, 0.1),
    "grpo, process": (GroupAdvantages("group_mean", "std", "process"), ONE, PLAIN, 0.9),
    "grpo, returns": (GroupAdvantages("group_mean", "std", "returns"), ONE, PLAIN, 0.2),
    "gdpo": (GroupAdvantages("group_mean", "std", by_component=True, whiten=True), TWO, PLAIN, 0.1),
    "reinforce": (GroupAdvantages("batch_mean", whiten=True), ONE, PLAIN, 0.1),
    "ppo with lambda 0.95": (GAE(), ONE, replace(PLAIN, lambda_=0.95), 0.005),
}  # fmt: skip


@pytest.mark.parametrize("name", BIASED)
def test_what_is_biased_is_so_at_any_step_size(name: str) -> None:
    """docs/algorithms.md says so of each: none of them may pass for the gradient of the reward."""
    algorithm, rewards, config, least = BIASED[name]
    assert at_best(*gradients(algorithm, rewards, config)) > least


@pytest.mark.parametrize("credit", ["outcome", "returns"])
def test_k1_in_the_reward_has_the_gradient_of_the_divergence(credit: Any) -> None:
    """The penalty is no multiple of 1/16, so fp32 is what is left."""
    assert error(*gradients(GroupAdvantages(credit=credit), ONE, penalised=True)) < 1e-6


@pytest.mark.parametrize("credit", ["outcome", "returns"])
def test_what_is_differentiated_must_be_what_was_drawn(credit: Any) -> None:
    """Drawn at temperature 0.7: as drawn the gradient is that of the reward; that of the plain softmax is another."""
    algorithm = GroupAdvantages(credit=credit)
    assert error(*gradients(algorithm, ONE, drawn=0.7, scored=0.7)) < 1e-12
    assert error(*gradients(algorithm, ONE, drawn=0.7)) > 0.2
