"""What a self-critical step trains on: responses with a weight each, cut into micro-batches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from finegrained_rlhf.core.records import Prompt, Rollout, pad_rows
from finegrained_rlhf.inference.measure import StepMetrics
from finegrained_rlhf.rl.self_critical import self_critical_rewards


@dataclass(frozen=True)
class Imitation:
    """A prompt that a policy learns from.

    Attributes:
        prompt: the input.
        answer_ids: token ids of a reference to imitate, the end of sequence last; None where there is none.
        rewarded: whether responses to the prompt can be scored.
    """

    prompt: Prompt
    answer_ids: tuple[int, ...] | None
    rewarded: bool


def useful(examples: Sequence[Imitation], alpha: float) -> list[Imitation]:
    """The examples that a run with this α learns from: rewarded ones (α > 0) and references (α < 1)."""
    return [e for e in examples if (alpha > 0 and e.rewarded) or (alpha < 1 and e.answer_ids is not None)]


@dataclass(frozen=True)
class WeightedRow:
    """One response that is trained on.

    Attributes:
        ids: its tokens, the end of sequence included where it was reached.
        weight: factor of its log-probability in the loss (negative pushes it away).
        reference: True for a reference to imitate, False for a sample.
        kl_weight: factor of its KL from the policy that the run began with, in the loss.
        sampler_logprobs: of a sample, what the engine gave for each token; empty for a reference.
    """

    ids: tuple[int, ...]
    weight: float
    reference: bool
    kl_weight: float = 0.0
    sampler_logprobs: tuple[float, ...] = ()


@dataclass(frozen=True)
class TrainedRows:
    """Weighted responses to some prompts; satisfies `ResponseRows`.

    Attributes:
        prompts: P prompts, each with at least one row.
        prompt_index: int64 [R], rows of one prompt contiguous.
        response_ids: int64 [R, T].
        response_mask: int64 [R, T].
        weights: fp32 [R].
        kl_weights: fp32 [R].
        references: bool [R].
        sampler_logprobs: fp32 [R, T] of samples; 0 at padding and in references.
        support: the plain softmax is scored, which has none.
    """

    prompts: Sequence[Prompt]
    prompt_index: Tensor
    response_ids: Tensor
    response_mask: Tensor
    weights: Tensor
    kl_weights: Tensor
    references: Tensor
    sampler_logprobs: Tensor
    support: None = None

    @property
    def written(self) -> Tensor:
        """int64 [R, T]: every real token."""
        return self.response_mask


@dataclass(frozen=True)
class ComparedRollout:
    """Greedy and sampled responses with their scores.

    Attributes:
        rollout: for each of the P prompts first its greedy response, then its m samples.
        scores: fp32 [P, 1 + m].
    """

    rollout: Rollout
    scores: Tensor

    @property
    def rewards(self) -> Tensor:
        """fp32 [P, m], the reward of each sample over the greedy response."""
        return self_critical_rewards(self.scores[:, 1:], self.scores[:, 0])


def sampled_rows(scored: ComparedRollout, scale: float, beta: float = 0.0) -> list[list[WeightedRow]]:
    """The samples of each prompt that have a gradient, with weight `scale` · r / m and KL weight `scale` · β / m.

    Without β these are the samples whose reward r is not 0, with it all of them.
    """
    rewards = scored.rewards
    prompts, samples = rewards.shape
    rollout, lengths = scored.rollout, scored.rollout.lengths().tolist()
    ids, drawn = rollout.response_ids.tolist(), rollout.logprobs.tolist()
    rows: list[list[WeightedRow]] = [[] for _ in range(prompts)]
    for prompt, sample in torch.nonzero(rewards if beta == 0 else torch.ones_like(rewards)).tolist():
        row = prompt * (1 + samples) + 1 + sample
        weight = scale * float(rewards[prompt, sample]) / samples
        length, kl = lengths[row], scale * beta / samples
        rows[prompt].append(WeightedRow(tuple(ids[row][:length]), weight, False, kl, tuple(drawn[row][:length])))
    return rows


def trained_rows(
    rows: Mapping[int, Sequence[WeightedRow]], prompts: Mapping[int, Prompt], pad_id: int, device: torch.device
) -> Iterator[TrainedRows]:
    """The rows of each prompt, put together with those of prompts that have equally many.

    Equal numbers let a prompt's work be shared among its rows (`models.families.t5.rows_are_shared`).

    Args:
        rows: of each prompt, by a number that stands for it; prompts without rows are left out.
        prompts: the prompts by the same numbers.
        pad_id: fills ids.
        device: of the tensors.
    """
    groups: dict[int, list[int]] = defaultdict(list)
    for number, of_question in rows.items():
        if of_question:
            groups[len(of_question)].append(number)
    for size in sorted(groups):
        numbers = groups[size]
        flat = [row for number in numbers for row in rows[number]]
        ids, mask = pad_rows([row.ids for row in flat], pad_id, device)
        drawn = torch.zeros(ids.shape)
        for place, row in zip(drawn, flat, strict=True):
            place[: len(row.sampler_logprobs)] = torch.tensor(row.sampler_logprobs)
        yield TrainedRows(
            prompts=[prompts[number] for number in numbers],
            prompt_index=torch.arange(len(numbers), device=device).repeat_interleave(size),
            response_ids=ids,
            response_mask=mask,
            weights=torch.tensor([row.weight for row in flat], dtype=torch.float32, device=device),
            kl_weights=torch.tensor([row.kl_weight for row in flat], dtype=torch.float32, device=device),
            references=torch.tensor([row.reference for row in flat], device=device),
            sampler_logprobs=drawn.to(device),
        )


def describe(scored: ComparedRollout, metrics: StepMetrics) -> None:
    """Add mean scores, the reward over the greedy response, the share of trained samples, and lengths in tokens."""
    prompts, rows = scored.scores.shape
    rewards = scored.rewards
    lengths = scored.rollout.lengths().view(prompts, rows).cpu()
    metrics.add("score/greedy", scored.scores[:, 0].sum(), prompts)
    metrics.add("score/samples", scored.scores[:, 1:].sum(), rewards.numel())
    metrics.add("reward", rewards.sum(), rewards.numel())
    metrics.add("rewarded_samples", (rewards != 0).sum(), rewards.numel())
    metrics.add("response_length/greedy", lengths[:, 0].sum(), prompts)
    metrics.add("response_length/samples", lengths[:, 1:].sum(), rewards.numel())


def compared_rows(scored: ComparedRollout) -> list[dict[str, Any]]:
    """One JSON object a prompt: `id`, `prompt`, and `greedy` and `samples` with `response`, `score` and `reward`."""
    prompts, rows = scored.scores.shape
    texts, rewards = scored.rollout.texts, scored.rewards.tolist()
    compared = []
    for number in range(prompts):
        scores = scored.scores[number].tolist()
        first = number * rows
        samples = [
            {"response": texts[first + 1 + i], "score": scores[1 + i], "reward": rewards[number][i]}
            for i in range(rows - 1)
        ]
        greedy = {"response": texts[first], "score": scores[0]}
        prompt = scored.rollout.prompts[number]
        compared.append({"id": prompt.id, "prompt": prompt.text, "greedy": greedy, "samples": samples})
    return compared
