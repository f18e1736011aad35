"""What goes through the models together: groups of whole prompts of a rollout, made once a step.

A prompt stays with all its responses, because they share its encoder pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.models.policy import encoded_once
from finegrained_rlhf.runtime.processes import Processes

_ALIGNED = {"cuda": 8}
"""Micro-batches are cut to a multiple of so many tokens, where the rollout is that long: fused attention copies masks
of other lengths."""


PassTokens = Callable[[Sequence[int], int, int], int]
"""Of responses to each prompt, tokens of the longest prompt and of the longest response: the tokens of a pass."""


class ResponseRows(Protocol):
    """What is cut: a rollout, or any other responses to prompts (shapes as in `Rollout`)."""

    @property
    def prompts(self) -> Sequence[Prompt]:
        """P prompts."""

    @property
    def prompt_index(self) -> Tensor:
        """int64 [R], the prompt of each row."""

    @property
    def response_ids(self) -> Tensor:
        """int64 [R, T]."""

    @property
    def response_mask(self) -> Tensor:
        """int64 [R, T]."""

    @property
    def written(self) -> Tensor:
        """int64 [R, T], the tokens that are scored and learnt."""

    @property
    def support(self) -> Tensor | None:
        """Int [R, T, K], as in `Rollout`."""


@dataclass(frozen=True)
class MicroBatch:
    """Some prompts of a rollout with all their responses.

    Attributes:
        prompts: g prompts.
        rows: int64 [r], the rollout's rows that answer them, prompt by prompt.
        index: int64 [r], the position of each row's prompt in `prompts`; on the CPU, so that reading it waits for no
            device.
        ids: int64 [r, t], the responses up to the longest of them.
        mask: int64 [r, t], 1 at the tokens that are scored and learnt.
        places: int64 [n], where the mask's ones are among its r·t entries.
        whole_support: int [R, T, K] of the whole rollout, which is cut where it is read; None as in `Rollout`.
    """

    prompts: Sequence[Prompt]
    rows: Tensor
    index: Tensor
    ids: Tensor
    mask: Tensor
    places: Tensor
    whole_support: Tensor | None = None

    @property
    def support(self) -> Tensor | None:
        """Int [r, t, K], what each token was drawn from; None as in `Rollout`."""
        return None if self.whole_support is None else self.cut(self.whole_support)

    def cut(self, tensor: Tensor) -> Tensor:
        """The part [r, t, …] of a rollout's tensor [R, T, …]."""
        return tensor[self.rows][:, : self.ids.shape[1]]


def micro_batches(
    rollout: ResponseRows,
    prompts: int,
    tokens: int | None = None,
    count: PassTokens = encoded_once,
    only: Sequence[int] | None = None,
) -> list[MicroBatch]:
    """Cut a rollout into groups of prompts of similar lengths.

    Args:
        rollout: the responses; those of another source serve as well.
        prompts: at most so many prompts a group.
        tokens: at most so many tokens a group, prompts and responses with their padding; one prompt alone may have
            more. None sets no limit.
        count: the tokens of a group, as a policy computes it (`Policy.pass_tokens`).
        only: places of the prompts that are cut; None cuts all.
    """
    widths = [1] * len(rollout.prompts)
    rows: list[list[int]] = [[] for _ in rollout.prompts]
    real = rollout.written.cpu().bool()
    owners, sizes = rollout.prompt_index.tolist(), rollout.response_mask.sum(dim=1).tolist()
    for row, (owner, length) in enumerate(zip(owners, sizes, strict=True)):
        rows[owner].append(row)
        widths[owner] = max(widths[owner], length)
    lengths = [len(prompt.input_ids) for prompt in rollout.prompts]
    cost = _Cost(lengths, widths, [len(of_process) for of_process in rows], count)
    # Neighbours in length of prompt or in length of response, whichever gives fewer groups or less padding.
    chosen = range(len(rows)) if only is None else only
    orders = (sorted(chosen, key=key) for key in (lambda i: (lengths[i], i), lambda i: (widths[i], i)))
    cuts = [_cut(order, cost, prompts, tokens) for order in orders]
    groups = min(cuts, key=lambda groups: (len(groups), sum(map(cost, groups))))
    aligned = _ALIGNED.get(rollout.response_ids.device.type, 1)

    def width(group: Sequence[int]) -> int:
        longest = max(widths[i] for i in group)
        return min(longest + -longest % aligned, rollout.response_ids.shape[1])

    return [_batch(rollout, real, group, rows, width(group)) for group in groups]


def rounds_together(own: int, processes: Processes) -> int:
    """How many micro-batches this process goes through: where something is shared out, as many as the one with most.

    Args:
        own: that it has itself.
        processes: of the run; where they share something out, all must call this.
    """
    return max(processes.gather_objects([own])) if processes.sharding != "none" else own


def stand_in(token: int, device: torch.device) -> MicroBatch:
    """A micro-batch of one prompt and one response of one token each, for a process that has none left."""
    ids = torch.tensor([[token]], device=device)
    zero = torch.zeros(1, dtype=torch.long)
    return MicroBatch([Prompt("", "", (token,))], zero.to(device), zero, ids, torch.ones_like(ids), zero.to(device))


@dataclass(frozen=True)
class _Cost:
    """Tokens of a group of prompts with their responses, padding included."""

    lengths: Sequence[int]
    widths: Sequence[int]
    rows: Sequence[int]
    count: PassTokens

    def __call__(self, group: Sequence[int]) -> int:
        longest, widest = max(self.lengths[i] for i in group), max(self.widths[i] for i in group)
        return self.count([self.rows[i] for i in group], longest, widest)


def _cut(order: Sequence[int], cost: _Cost, prompts: int, tokens: int | None) -> list[list[int]]:
    groups: list[list[int]] = []
    for i in order:
        if groups and len(groups[-1]) < prompts and (tokens is None or cost([*groups[-1], i]) <= tokens):
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


def _batch(
    rollout: ResponseRows, real: Tensor, group: Sequence[int], rows: Sequence[Sequence[int]], width: int
) -> MicroBatch:
    device = rollout.response_ids.device
    chosen = torch.tensor([row for i in group for row in rows[i]], dtype=torch.long)
    places = real[chosen][:, :width].flatten().nonzero().squeeze(1)
    chosen = chosen.to(device)
    return MicroBatch(
        prompts=[rollout.prompts[i] for i in group],
        rows=chosen,
        index=torch.tensor([place for place, i in enumerate(group) for _ in rows[i]], dtype=torch.long),
        ids=rollout.response_ids[chosen][:, :width],
        mask=rollout.written[chosen][:, :width],
        places=places.to(device),
        whole_support=rollout.support,
    )
