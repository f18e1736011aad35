"""How far the responses to a prompt differ in what they were paid, and whether anything is learnt of them."""

from __future__ import annotations

import torch
from torch import Tensor

from finegrained_rlhf.core.records import Experience
from finegrained_rlhf.inference.measure import StepMetrics
from finegrained_rlhf.training.ppo.advantages import BASELINE, KL

ROUNDING = 1e-7
"""Of the largest reward of a group: what differs by less is alike. Means of equal numbers differ by such errors."""


def without_advantage(experience: Experience) -> list[bool]:
    """Of each of P prompts whether the rewards give none of its responses an advantage.

    The KL penalty's share is left aside, and without a value model what whitening subtracts: neither is earned.
    """
    groups, trace = experience.rollout.prompt_index, experience.trace
    left_out = {KL} if experience.values is not None else {KL, BASELINE}
    shares = [share for name, share in experience.shares.items() if name not in left_out]
    earned = sum(shares, torch.zeros_like(experience.advantages)) if shares else experience.advantages
    paid = sum((part.weighted.abs() for part in trace.components.values()), torch.zeros_like(trace.total)).sum(dim=1)
    count = len(experience.rollout.prompts)
    largest, size = _largest(earned.abs().amax(dim=1), groups, count), _largest(paid, groups, count)
    return (largest <= ROUNDING * size).tolist()


def describe_groups(experience: Experience, metrics: StepMetrics) -> None:
    """Add how far the responses to a prompt differ, where there are several.

    `reward/NAME/spread` is the mean over prompts of the sample standard deviation of a component's weighted reward,
    summed over each response; `groups/same_reward` the share of prompts whose responses are all paid alike,
    `groups/no_advantage` that of prompts of whose responses nothing is learnt (`without_advantage`). Responses without
    a score are left out; prompts with one other response or none do not count.
    """
    rollout, trace = experience.rollout, experience.trace
    if sum(decoding.samples for decoding in rollout.decodings) < 2:
        return
    for name, component in trace.components.items():
        known = torch.ones(len(trace.total), dtype=torch.bool, device=trace.total.device)
        known[sorted(component.scores.unscored)] = False
        spread, compared, _ = _spreads(component.weighted, known, experience)
        metrics.add(f"reward/{name}/spread", spread[compared].sum(), compared.sum())
    scored = torch.ones_like(trace.total[:, 0], dtype=torch.bool) if trace.scored is None else trace.scored
    spread, compared, size = _spreads(trace.total, scored, experience)
    metrics.add("groups/same_reward", (spread <= ROUNDING * size)[compared].sum(), compared.sum())
    metrics.add("groups/no_advantage", sum(without_advantage(experience)), len(rollout.prompts))


def _spreads(rewards: Tensor, known: Tensor, experience: Experience) -> tuple[Tensor, Tensor, Tensor]:
    """Of the rewards [R, T] of each prompt's responses: standard deviation fp64 [P], whether two are known, largest."""
    groups, count = experience.rollout.prompt_index, len(experience.rollout.prompts)
    here, sums = known.double(), rewards.double().sum(dim=1) * known
    counts, totals = (sums.new_zeros(count).index_add_(0, groups, x) for x in (here, sums))
    mean = totals / counts.clamp(min=1)
    squares = sums.new_zeros(count).index_add_(0, groups, (sums - mean[groups]) ** 2 * here)
    return (squares / (counts - 1).clamp(min=1)).sqrt(), counts > 1, _largest(sums.abs(), groups, count)


def _largest(sizes: Tensor, groups: Tensor, count: int) -> Tensor:
    """The largest of the numbers [R], none negative, of each group, [P]."""
    return sizes.new_zeros(count).scatter_reduce(0, groups, sizes, "amax")
