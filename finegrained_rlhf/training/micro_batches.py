"""Groups of whole prompts that go through the models together, made once a step.

Knows rollouts. A prompt stays with all its responses, because they share its encoder pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from finegrained_rlhf.core.records import Prompt, Rollout


@dataclass(frozen=True)
class MicroBatch:
    """Some prompts of a rollout with all their responses.

    Attributes:
        prompts: g prompts.
        rows: int64 [r], the rollout's rows that answer them, prompt by prompt.
        index: int64 [r], the position of each row's prompt in `prompts`.
        ids: int64 [r, t], the responses up to the longest of them.
        mask: int64 [r, t].
    """

    prompts: Sequence[Prompt]
    rows: Tensor
    index: Tensor
    ids: Tensor
    mask: Tensor

    def cut(self, tensor: Tensor) -> Tensor:
        """The part [r, t] of a rollout's tensor [R, T]."""
        return tensor[self.rows][:, : self.ids.shape[1]]


def micro_batches(rollout: Rollout, prompts: int, tokens: int | None = None) -> list[MicroBatch]:
    """Cut a rollout into groups of prompts of similar lengths.

    Args:
        rollout: the responses.
        prompts: at most so many prompts a group.
        tokens: at most so many tokens a group, prompts and responses with their padding; one prompt alone may have
            more. None sets no limit.
    """
    widths = [1] * len(rollout.prompts)
    rows: list[list[int]] = [[] for _ in rollout.prompts]
    for row, (owner, length) in enumerate(zip(rollout.prompt_index.tolist(), rollout.lengths().tolist(), strict=True)):
        rows[owner].append(row)
        widths[owner] = max(widths[owner], length)
    lengths = [len(prompt.input_ids) for prompt in rollout.prompts]
    groups = _groups(lengths, widths, [len(mine) for mine in rows], prompts, tokens)
    return [_batch(rollout, group, rows, max(widths[i] for i in group)) for group in groups]


def _groups(
    lengths: Sequence[int], widths: Sequence[int], counts: Sequence[int], prompts: int, tokens: int | None
) -> list[list[int]]:
    groups: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: (lengths[i], widths[i], i)):
        group = [*groups[-1], i] if groups else [i]
        cost = len(group) * lengths[i] + sum(counts[j] for j in group) * max(widths[j] for j in group)
        if len(group) > prompts or not groups or (tokens is not None and cost > tokens):
            groups.append([i])
        else:
            groups[-1] = group
    return groups


def _batch(rollout: Rollout, group: Sequence[int], rows: Sequence[Sequence[int]], width: int) -> MicroBatch:
    device = rollout.response_ids.device
    chosen = torch.tensor([row for i in group for row in rows[i]], device=device)
    index = torch.tensor([place for place, i in enumerate(group) for _ in rows[i]], device=device)
    return MicroBatch(
        prompts=[rollout.prompts[i] for i in group],
        rows=chosen,
        index=index,
        ids=rollout.response_ids[chosen][:, :width],
        mask=rollout.response_mask[chosen][:, :width],
    )
