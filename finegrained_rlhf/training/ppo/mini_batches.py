"""What one optimizer step of the update is made from: whole groups of a rollout, chosen without regard to processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from finegrained_rlhf.core.records import Experience
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.micro_batches import MicroBatch, micro_batches, rounds_together
from finegrained_rlhf.training.ppo.config import PPOConfig


@dataclass(frozen=True)
class GlobalCounts:
    """Response tokens and responses, over all processes."""

    tokens: float
    responses: float

    def times(self, factor: float) -> GlobalCounts:
        """Both, multiplied."""
        return GlobalCounts(self.tokens * factor, self.responses * factor)


@dataclass(frozen=True)
class MiniBatch:
    """What a process has of one optimizer step.

    Attributes:
        batches: its micro-batches; may be none.
        rounds: passes that it goes through, which may be more where weights or gradients are shared out.
        counts: what the losses are divided by (`Experience.counted`), over all processes.
        every: all responses, also those that no reward is known of; over all processes.
    """

    batches: Sequence[MicroBatch]
    rounds: int
    counts: GlobalCounts
    every: GlobalCounts

    def learnt_share(self, by_token: bool) -> float:
        """Of all tokens, or of all responses, what is learnt from."""
        if by_token:
            return self.counts.tokens / self.every.tokens
        return self.counts.responses / self.every.responses


def deal(prompts: int, parts: int, seed: int, step: int, epoch: int) -> list[list[int]]:
    """Which of a step's prompts, by their places in its list over all processes, are in which mini-batch.

    Of every `parts` neighbours each goes into another mini-batch, at random. So the sizes differ by at most one, and a
    process, whose prompts are neighbours, has nearly as many in each.

    Args:
        prompts: of the step, over all processes.
        parts: mini-batches, at most `prompts`.
        seed: of the run.
        step: the training step.
        epoch: of the update, from 0.

    Returns:
        Places in ascending order, by mini-batch.
    """
    if parts > prompts:
        raise ValueError(f"{prompts} prompts make no {parts} mini-batches")
    generator = np.random.default_rng(stable_hash(seed, "mini-batches", step, epoch))
    members: list[list[int]] = [[] for _ in range(parts)]
    for first in range(0, prompts, parts):
        for place, part in zip(range(first, min(first + parts, prompts)), generator.permutation(parts), strict=False):
            members[part].append(place)
    return members


class MiniBatches:
    """Cuts a rollout into the mini-batches of its update.

    Args:
        policy: whose passes count tokens.
        processes: of the run.
        config: PPO settings.
        seed: of the run.
    """

    def __init__(self, policy: Policy, processes: Processes, config: PPOConfig, seed: int) -> None:
        self._policy, self._processes, self._config, self._seed = policy, processes, config, seed

    def of_step(self, step: int, experience: Experience, batches: Sequence[MicroBatch]) -> list[MiniBatch]:
        """One for each optimizer step, in order; every process must call this.

        Args:
            step: the training step.
            experience: of this process; may be empty.
            batches: all of its rollout, in micro-batches.
        """
        config, rollout = self._config, experience.rollout
        if config.mini_batches == 1:
            return [self._counted(experience, batches)] * config.epochs
        own = len(rollout.prompts)
        everywhere = self._processes.gather_objects([own])
        before = sum(everywhere[: self._processes.rank])
        limits = config.micro_batch_prompts, config.micro_batch_tokens, self._policy.pass_tokens
        return [
            self._counted(experience, micro_batches(rollout, *limits, [place - before for place in places]))
            for epoch in range(config.epochs)
            for members in deal(sum(everywhere), config.mini_batches, self._seed, step, epoch)
            for places in ([place for place in members if before <= place < before + own],)
        ]

    def _counted(self, experience: Experience, batches: Sequence[MicroBatch]) -> MiniBatch:
        everything = experience.rollout.written
        rows = torch.cat([everything.new_zeros(0), *(batch.rows for batch in batches)])
        lengths = [mask[rows].sum(dim=1) for mask in (experience.counted, everything)]
        own = torch.tensor([[float(n.sum()), float((n > 0).sum())] for n in lengths], dtype=torch.float64)
        learnt, every = self._processes.sum_(own).clamp(min=1.0).tolist()
        return MiniBatch(
            batches, rounds_together(len(batches), self._processes), GlobalCounts(*learnt), GlobalCounts(*every)
        )
