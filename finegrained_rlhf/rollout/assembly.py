"""From raw generated ids to a Rollout: cut after the end of sequence, order rows, decode text, join batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from finegrained_rlhf.core.records import Decoding, Rollout
from finegrained_rlhf.models.policy import PromptMemory
from finegrained_rlhf.text.alignment import token_ends


def mask_after_eos(ids: Tensor, eos_ids: Sequence[int]) -> Tensor:
    """int64 mask [R, T] of ids int64 [R, T] that is 1 up to and including the first end-of-sequence token.

    Decided by the end-of-sequence id alone, so a pad token that equals it needs no special care.
    """
    ended = torch.isin(ids, torch.as_tensor(list(eos_ids), device=ids.device)).long()
    return ((ended.cumsum(dim=1) - ended) == 0).long()


def row_order(prompts: int, decodings: Sequence[Decoding], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """(prompt_index, sample_index, decoding_index), int64 [R]: rows of one prompt contiguous, decodings in order."""
    block = [(sample, which) for which, decoding in enumerate(decodings) for sample in range(decoding.samples)]
    sample_index = torch.tensor([sample for sample, _ in block], device=device).repeat(prompts)
    decoding_index = torch.tensor([which for _, which in block], device=device).repeat(prompts)
    prompt_index = torch.arange(prompts, device=device).repeat_interleave(len(block))
    return prompt_index, sample_index, decoding_index


def assemble(
    memory: PromptMemory, decodings: Sequence[Decoding], ids: Tensor, mask: Tensor, logprobs: Tensor, tokenizer: Any
) -> Rollout:
    """A Rollout from rows in `row_order`, trimmed to the longest response, with texts and character offsets.

    Args:
        memory: the P prompts.
        decodings: that drew the rows, together N a prompt.
        ids: int64 [R, T] with R = P·N, padded.
        mask: int64 [R, T], 1 up to and including the first end of sequence.
        logprobs: fp32 [R, T], 0 at padding.
        tokenizer: decodes the ids.
    """
    width = max(int(mask.sum(dim=1).max()), 1) if mask.numel() else 1
    ids, mask, logprobs = ids[:, :width], mask[:, :width], logprobs[:, :width]
    prompt_index, sample_index, decoding_index = row_order(len(memory.prompts), decodings, ids.device)
    decoded = [
        token_ends(tokenizer, row[:length]) for row, length in zip(ids.tolist(), mask.sum(dim=1).tolist(), strict=True)
    ]
    return Rollout(
        prompts=memory.prompts,
        prompt_ids=memory.prompt_ids,
        prompt_mask=memory.prompt_mask,
        prompt_index=prompt_index,
        sample_index=sample_index,
        decoding_index=decoding_index,
        decodings=tuple(decodings),
        response_ids=ids,
        response_mask=mask,
        logprobs=logprobs,
        texts=[text for text, _ in decoded],
        token_ends=[ends for _, ends in decoded],
    )


def _join(tensors: Sequence[Tensor], fill: int) -> Tensor:
    width = max(tensor.shape[1] for tensor in tensors)
    behind = [(*(0, 0) * (t.dim() - 2), 0, width - t.shape[1]) for t in tensors]
    return torch.cat([torch.nn.functional.pad(t, pad, value=fill) for t, pad in zip(tensors, behind, strict=True)])


def join_rollouts(rollouts: Sequence[Rollout], pad_id: int) -> Rollout:
    """One Rollout from batches that were decoded one after the other with the same decodings.

    Raises:
        ValueError: no batch, or batches of different decodings.
    """
    if not rollouts or any(r.decodings != rollouts[0].decodings for r in rollouts):
        raise ValueError("need at least one rollout, all with the same decodings")
    if len(rollouts) == 1:
        return rollouts[0]
    offsets = [0]
    for rollout in rollouts:
        offsets.append(offsets[-1] + len(rollout.prompts))
    supports = [r.support for r in rollouts if r.support is not None]  # what has no response has none
    return Rollout(
        prompts=[prompt for r in rollouts for prompt in r.prompts],
        prompt_ids=_join([r.prompt_ids for r in rollouts], pad_id),
        prompt_mask=_join([r.prompt_mask for r in rollouts], 0),
        prompt_index=torch.cat([r.prompt_index + offset for r, offset in zip(rollouts, offsets, strict=False)]),
        sample_index=torch.cat([r.sample_index for r in rollouts]),
        decoding_index=torch.cat([r.decoding_index for r in rollouts]),
        decodings=rollouts[0].decodings,
        response_ids=_join([r.response_ids for r in rollouts], pad_id),
        response_mask=_join([r.response_mask for r in rollouts], 0),
        logprobs=_join([r.logprobs for r in rollouts], 0),
        support=_join(supports, 0) if supports else None,
        texts=[text for r in rollouts for text in r.texts],
        token_ends=[ends for r in rollouts for ends in r.token_ends],
        turns=[talk for r in rollouts for talk in r.turns],
    )


def take_prompts(rollout: Rollout, chosen: Sequence[int]) -> Rollout:
    """The responses to some prompts of a rollout, as a rollout of its own, cut to its longest response.

    Args:
        rollout: P prompts, as an engine gave it.
        chosen: numbers of prompts, in the order wanted; none twice.
    """
    owners = rollout.prompt_index.tolist()
    numbers = [row for prompt in chosen for row, owner in enumerate(owners) if owner == prompt]
    rows = torch.tensor(numbers, dtype=torch.long, device=rollout.response_ids.device)
    prompts = torch.tensor(list(chosen), dtype=torch.long, device=rows.device)
    places = {prompt: place for place, prompt in enumerate(chosen)}
    width = max([1, *rollout.lengths()[rows].tolist()])
    return Rollout(
        prompts=[rollout.prompts[prompt] for prompt in chosen],
        prompt_ids=rollout.prompt_ids[prompts],
        prompt_mask=rollout.prompt_mask[prompts],
        prompt_index=torch.tensor([places[owners[row]] for row in numbers], dtype=torch.long, device=rows.device),
        sample_index=rollout.sample_index[rows],
        decoding_index=rollout.decoding_index[rows],
        decodings=rollout.decodings,
        response_ids=rollout.response_ids[rows, :width],
        response_mask=rollout.response_mask[rows, :width],
        logprobs=rollout.logprobs[rows, :width],
        texts=[rollout.texts[row] for row in numbers],
        token_ends=[rollout.token_ends[row] for row in numbers],
        turns=[rollout.turns[row] for row in numbers] if rollout.turns else (),
        support=None if rollout.support is None else rollout.support[rows, :width],
    )


def empty_rollout(decodings: Sequence[Decoding], device: torch.device) -> Rollout:
    """The rollout of a process that has no prompt in a step."""
    none = torch.zeros((0, 1), dtype=torch.long, device=device)
    index = torch.zeros(0, dtype=torch.long, device=device)
    return Rollout([], none, none, index, index, index, tuple(decodings), none, none, none.float(), [], [])
