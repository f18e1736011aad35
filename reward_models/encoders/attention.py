"""Longformer's attention without its chunking: the same weights and the same function, block by block.

transformers pads every input to a multiple of the window and gathers overlapping chunks; here the queries are cut into
blocks, and each block attends to the slice of the keys that its window reaches by one masked
`scaled_dot_product_attention`. Nothing is padded beyond the longest row of the batch, time and memory grow linearly
with it, and nothing here waits for the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import LongformerModel
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

MIN_BLOCK = 64
DENSE_BLOCKS = 3


@dataclass(frozen=True)
class GlobalTokens:
    """Tokens that see, and are seen by, every token of their row.

    Attributes:
        positions: int64 [B, G]; the real ones of a row are distinct.
        real: bool [B, G]; False where a row has fewer than G, whatever its position says.
    """

    positions: Tensor
    real: Tensor

    def everywhere(self, length: int) -> Tensor:
        """Bool [B, L]: True at these tokens."""
        return self.into(self.real.new_zeros(len(self.real), length), self.real)

    def into(self, target: Tensor, values: Tensor) -> Tensor:
        """`target` [B, L, …] with `values` [B, G, …] at these tokens; values that are not real are dropped."""
        length = target.shape[1]
        slot = self.positions.masked_fill(~self.real, length)  # a row more, which is cut off again
        padding = (0, 0) * (target.ndim - 2) + (0, 1)
        return F.pad(target, padding).scatter_(1, _index(slot, values), values)[:, :length]

    def of(self, hidden: Tensor) -> Tensor:
        """Rows of `hidden` [B, L, D] at these tokens, [B, G, D]."""
        return hidden.gather(1, _index(self.positions, hidden))


@dataclass(frozen=True)
class Block:
    """Some queries and what they see.

    Attributes:
        queries: which tokens.
        keys: the slice of tokens that their windows reach.
        allowed: bool [B, 1, queries, keys], or [B, 1, queries, keys + G] where the global tokens' keys are appended.
        appended: whether they are; else they are among `keys`.
    """

    queries: slice
    keys: slice
    allowed: Tensor
    appended: bool


def _index(positions: Tensor, like: Tensor) -> Tensor:
    """`positions` [B, K] as an index of gather and scatter along dimension 1 of `like` [B, L] or [B, L, D]."""
    return positions if like.ndim == 2 else positions[..., None].expand(-1, -1, like.shape[-1])


def _heads(x: Tensor, heads: int) -> Tensor:
    """[B, L, H·d] to [B, H, L, d]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _attend(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor, dropout: float) -> Tensor:
    """Masked attention of [B, H, ·, d] tensors, [B, queries, H·d]."""
    attended = F.scaled_dot_product_attention(query, key, value, attn_mask=allowed, dropout_p=dropout)
    return attended.transpose(1, 2).flatten(2)


def keys_seen(queries: Tensor, keys: Tensor, real: Tensor, everywhere: Tensor | None, one_sided: int) -> Tensor:
    """Which key each non-global query sees, bool [B, 1, Q, K].

    A query sees the real tokens of its window and every real global token (Beltagy et al. 2020, section 3.1). Every
    query sees itself, also a padding one, so that its softmax is defined; nothing reads a padding row.

    Args:
        queries: int64 [B, Q] or [1, Q], positions.
        keys: int64 [K], positions.
        real: bool [B, K], the keys that may be seen.
        everywhere: bool [B, K], the keys that are seen from any distance; None for none.
        one_sided: half the attention window in tokens.
    """
    distance = (queries[:, :, None] - keys).abs()
    near = distance <= one_sided
    if everywhere is not None:
        near = near | everywhere[:, None, :]
    return ((near & real[:, None, :]) | (distance == 0))[:, None]


def block_slices(length: int, one_sided: int) -> list[tuple[slice, slice]]:
    """Queries in blocks with the keys that their windows reach; one block of everything where that is no slower.

    Measured on a CPU with windows of 512 and 64 tokens: from about three blocks on, several blocks are faster than one.
    """
    size = max(one_sided, MIN_BLOCK)
    if length <= DENSE_BLOCKS * size:
        return [(slice(0, length), slice(0, length))]
    starts = range(0, length, size)
    return [
        (slice(i, min(i + size, length)), slice(max(0, i - one_sided), min(i + size + one_sided, length)))
        for i in starts
    ]


def make_blocks(mask: Tensor, wide: GlobalTokens | None, one_sided: int) -> list[Block]:
    """The blocks of a batch.

    Args:
        mask: int64 [B, L], 1 = real.
        wide: global tokens, all of them real tokens; None for none.
        one_sided: half the attention window in tokens.
    """
    length, real = mask.shape[1], mask.bool()
    everywhere = None if wide is None else wide.everywhere(length)
    position = torch.arange(length, device=mask.device)
    slices = block_slices(length, one_sided)
    if wide is None or everywhere is None or len(slices) == 1:
        shown = [None if everywhere is None else everywhere[:, keys] for _, keys in slices]
        return [
            Block(q, k, keys_seen(position[None, q], position[k], real[:, k], always, one_sided), False)
            for (q, k), always in zip(slices, shown, strict=True)
        ]
    blocks, local = [], real & ~everywhere  # a global token inside the window is seen once, among the appended keys
    for q, k in slices:
        allowed = keys_seen(position[None, q], position[k], local[:, k], None, one_sided)
        appended = wide.real[:, None, None, :].expand(-1, 1, allowed.shape[2], -1)
        blocks.append(Block(q, k, torch.cat([allowed, appended], dim=-1), True))
    return blocks


def _global_rows(module: LongformerSelfAttention, queries: Tensor, hidden: Tensor, mask: Tensor) -> Tensor:
    """Attention of tokens with hidden states `queries` [B, G, D] to every real token, by the global projections."""
    heads, drop = module.num_heads, module.dropout if module.training else 0.0
    query = _heads(module.query_global(queries), heads)
    key, value = _heads(module.key_global(hidden), heads), _heads(module.value_global(hidden), heads)
    return _attend(query, key, value, mask.bool()[:, None, None, :], drop)


def self_attention(
    module: LongformerSelfAttention, hidden: Tensor, mask: Tensor, wide: GlobalTokens | None, blocks: list[Block]
) -> Tensor:
    """Output of one `LongformerSelfAttention`, [B, L, D].

    Args:
        module: the transformers module whose projections are used.
        hidden: [B, L, D].
        mask: int64 [B, L].
        wide: global tokens, all of them real tokens; None for none.
        blocks: from `make_blocks` of the same mask, tokens and window.
    """
    heads, drop = module.num_heads, module.dropout if module.training else 0.0
    projected = module.query(hidden), module.key(hidden), module.value(hidden)
    query, key, value = (_heads(x, heads) for x in projected)
    if wide is not None and blocks[0].appended:
        wide_key, wide_value = (_heads(wide.of(x), heads) for x in projected[1:])
    parts = []
    for block in blocks:
        keys, values = key[:, :, block.keys], value[:, :, block.keys]
        if block.appended:
            keys, values = torch.cat([keys, wide_key], dim=2), torch.cat([values, wide_value], dim=2)
        parts.append(_attend(query[:, :, block.queries], keys, values, block.allowed, drop))
    out = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
    return out if wide is None else wide.into(out, _global_rows(module, wide.of(hidden), hidden, mask))


def _attend_at(
    module: LongformerSelfAttention,
    hidden: Tensor,
    mask: Tensor,
    wide: GlobalTokens | None,
    positions: Tensor,
    are_global: bool | None,
) -> Tensor:
    """Output of one `LongformerSelfAttention` at some positions only, [B, K, D].

    Args:
        module, hidden, mask, wide: as in `self_attention`.
        positions, are_global: as in `encode_at`.
    """
    at = hidden.gather(1, _index(positions, hidden))
    if wide is not None and are_global:
        return _global_rows(module, at, hidden, mask)
    heads, drop = module.num_heads, module.dropout if module.training else 0.0
    length, window = mask.shape[1], module.one_sided_attn_window_size
    everywhere = None if wide is None else wide.everywhere(length)
    allowed = keys_seen(positions, torch.arange(length, device=mask.device), mask.bool(), everywhere, window)
    query, key, value = (
        _heads(layer(x), heads) for layer, x in ((module.query, at), (module.key, hidden), (module.value, hidden))
    )
    out = _attend(query, key, value, allowed, drop)
    if everywhere is None or are_global is False:
        return out
    return torch.where(everywhere.gather(1, positions)[..., None], _global_rows(module, at, hidden, mask), out)


def encode_at(
    model: LongformerModel,
    input_ids: Tensor,
    mask: Tensor,
    wide: GlobalTokens | None,
    positions: Tensor,
    are_global: bool | None = None,
) -> Tensor:
    """Last hidden states of a Longformer at some positions, [B, K, D]; equal to transformers' own at real tokens.

    A head reads few positions, so the last layer is computed at those alone.

    Args:
        model: the encoder.
        input_ids: int64 [B, L], right-padded with the model's padding id; every row has at least one real token.
        mask: int64 [B, L], 1 = real.
        wide: tokens with global attention; None for none.
        positions: int64 [B, K], which tokens of each row are wanted.
        are_global: True where every wanted token is global, False where none is: half of the last layer's projections
            are then left out. None makes no assumption.
    """
    if wide is not None:
        wide = GlobalTokens(wide.positions, wide.real & mask.gather(1, wide.positions).bool())
    hidden: Tensor = model.embeddings(input_ids=input_ids)
    blocks: dict[int, list[Block]] = {}
    last = len(model.encoder.layer) - 1
    for number, layer in enumerate(model.encoder.layer):
        module = layer.attention.self
        if number < last:
            window = module.one_sided_attn_window_size
            if window not in blocks:
                blocks[window] = make_blocks(mask, wide, window)
            attended = self_attention(module, hidden, mask, wide, blocks[window])
        else:
            attended = _attend_at(module, hidden, mask, wide, positions, are_global)
            hidden = hidden.gather(1, _index(positions, hidden))
        attended = layer.attention.output(attended, hidden)
        hidden = layer.output(layer.intermediate(attended), attended)
    return hidden
