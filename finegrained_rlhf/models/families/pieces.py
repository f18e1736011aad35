"""Prompts in pieces: each piece is encoded alone, and the decoder reads all of them as one memory.

Fusion-in-decoder (Izacard and Grave, 2021) is no other model than the encoder–decoder that it uses: only its encoder
reads (question, passage) by (question, passage). The decoder's cross-attention knows no positions, so the states of the
real tokens stand one behind the other without padding between pieces, and their order changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from finegrained_rlhf.core.batching import batch_overhead, length_groups
from finegrained_rlhf.core.records import Prompt, on_device, pad_rows
from finegrained_rlhf.models.families import seq2seq, t5
from finegrained_rlhf.runtime.sharding.shards import COMPUTED

PIECE_TOKENS = 1 << 14
"""Tokens that go through the encoder at once, padding included: a batch of pieces of similar length."""


def encode_in_pieces(model: Any, prompts: Sequence[Prompt], ids: Tensor, mask: Tensor) -> Tensor:
    """Encoder output [P, L, D] of prompts, each of which is encoded whole or by pieces.

    Args:
        model: with an encoder.
        prompts: the P prompts; `Prompt.pieces` says where they are cut.
        ids: int64 [P, L], right-padded.
        mask: int64 [P, L], 1 = real.

    Raises:
        ModelError: a piece has more tokens than the model has positions.
    """
    if not any(len(prompt.pieces) > 1 for prompt in prompts):
        return seq2seq.encode(model, ids, mask)
    rows, places = cut_in_pieces(prompts, ids.shape[1])
    lengths = [len(row) for row in rows]
    # Where weights are in shards, all processes must go through the encoder equally often.
    sharded = COMPUTED in vars(model)
    together = max(1, PIECE_TOKENS // max(max(lengths), 1))
    groups = [list(range(len(rows)))] if sharded else length_groups(lengths, together, batch_overhead(ids.device))
    aligned = t5.ALIGNED if ids.is_cuda and t5.is_t5(model) else 1
    states, targets = [], []
    for group in groups:
        piece_ids, piece_mask = pad_rows([rows[i] for i in group], 0, ids.device, aligned)
        encoded = seq2seq.encode(model, piece_ids, piece_mask)
        real = torch.tensor([i * piece_ids.shape[1] + t for i, n in enumerate(group) for t in range(lengths[n])])
        states.append(encoded.flatten(0, 1).index_select(0, on_device(real, ids.device)))
        targets += [place for n in group for place in range(places[n], places[n] + lengths[n])]
    read = torch.cat(states)
    memory = read.new_zeros(ids.numel(), read.shape[-1])
    memory = memory.index_copy(0, on_device(torch.tensor(targets), ids.device), read)
    return memory.unflatten(0, tuple(ids.shape))


def cut_in_pieces(prompts: Sequence[Prompt], width: int) -> tuple[list[tuple[int, ...]], list[int]]:
    """The pieces of all prompts, and where each begins in a flat [P·L] of rows of `width` tokens."""
    rows, places = [], []
    for number, prompt in enumerate(prompts):
        start = 0
        for length in prompt.pieces or (len(prompt.input_ids),):
            rows.append(prompt.input_ids[start : start + length])
            places.append(number * width + start)
            start += length
    return rows, places
