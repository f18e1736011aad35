"""Longformer's attention without its chunking: the same weights and the same function as one masked attention.

Knows the modules of transformers' `LongformerModel`. Knows no head and no data. transformers pads every input to a
multiple of the window and gathers overlapping chunks; inputs of up to a few thousand tokens are faster as one dense
`scaled_dot_product_attention` with a band mask, and need no padding beyond the longest row of the batch.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import LongformerModel
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

DENSE_LIMIT = 2048


def band_mask(length: int, one_sided: int, device: torch.device) -> Tensor:
    """Bool [L, L]: True where |i − j| <= `one_sided`, the keys that Longformer's sliding window lets a token see."""
    position = torch.arange(length, device=device)
    return (position[:, None] - position[None, :]).abs() <= one_sided


def attention_mask(mask: Tensor, global_mask: Tensor, one_sided: int) -> Tensor:
    """Bool [B, 1, L, L]: which key each non-global query sees.

    A query sees the real tokens of its window and every real global token (Beltagy et al. 2020, section 3.1). A
    padding row sees itself alone, so that its softmax is defined; nothing reads it.

    Args:
        mask: int64 [B, L], 1 = real.
        global_mask: int64 [B, L], 1 = token with global attention.
        one_sided: half the attention window in tokens.
    """
    length = mask.shape[1]
    real = mask.bool()
    near = band_mask(length, one_sided, mask.device)[None] | (global_mask.bool() & real)[:, None, :]
    itself = torch.eye(length, dtype=torch.bool, device=mask.device)
    return ((near & real[:, None, :]) | itself)[:, None]


def _heads(x: Tensor, heads: int) -> Tensor:
    """[B, L, H·d] to [B, H, L, d]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _global_rows(global_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Positions of the global tokens: int64 [B, G] (row-wise, in order) and bool [B, G], True at real entries."""
    count = global_mask.sum(dim=1)
    width = int(count.max())
    positions = torch.argsort(global_mask, dim=1, descending=True, stable=True)[:, :width]
    return positions, torch.arange(width, device=global_mask.device)[None, :] < count[:, None]


def self_attention(
    module: LongformerSelfAttention,
    hidden: Tensor,
    mask: Tensor,
    global_mask: Tensor,
    allowed: Tensor,
    has_global: bool,
) -> Tensor:
    """Output of one `LongformerSelfAttention`, [B, L, D].

    Args:
        module: the transformers module whose projections are used.
        hidden: [B, L, D].
        mask: int64 [B, L].
        global_mask: int64 [B, L].
        allowed: bool [B, 1, L, L] from `attention_mask`.
        has_global: whether any token of the batch has global attention.
    """
    heads, drop = module.num_heads, module.dropout if module.training else 0.0
    query, key, value = (_heads(layer(hidden), heads) for layer in (module.query, module.key, module.value))
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=allowed, dropout_p=drop)
    out = out.transpose(1, 2).flatten(2)
    if not has_global:
        return out
    rows, real = _global_rows(global_mask)
    index = rows[..., None].expand(-1, -1, hidden.shape[-1])
    query = _heads(module.query_global(hidden.gather(1, index)), heads)
    key, value = _heads(module.key_global(hidden), heads), _heads(module.value_global(hidden), heads)
    seen = mask.bool()[:, None, None, :]
    found = F.scaled_dot_product_attention(query, key, value, attn_mask=seen, dropout_p=drop).transpose(1, 2).flatten(2)
    found = torch.where(real[..., None], found, out.gather(1, index))
    return out.scatter(1, index, found)


def _attend_at(
    module: LongformerSelfAttention,
    hidden: Tensor,
    mask: Tensor,
    global_mask: Tensor,
    allowed: Tensor,
    positions: Tensor,
) -> Tensor:
    """Output of one `LongformerSelfAttention` at some positions only, [B, K, D].

    Args:
        module, hidden, mask, global_mask, allowed: as in `self_attention`.
        positions: int64 [B, K].
    """
    heads, drop = module.num_heads, module.dropout if module.training else 0.0
    at = hidden.gather(1, positions[..., None].expand(-1, -1, hidden.shape[-1]))
    is_global = global_mask.gather(1, positions).bool()
    out = torch.zeros_like(at)
    if not bool(is_global.all()):
        query, key, value = (
            _heads(layer(x), heads) for layer, x in ((module.query, at), (module.key, hidden), (module.value, hidden))
        )
        seen = allowed[:, 0].gather(1, positions[..., None].expand(-1, -1, allowed.shape[-1]))[:, None]
        found = F.scaled_dot_product_attention(query, key, value, attn_mask=seen, dropout_p=drop)
        out = found.transpose(1, 2).flatten(2)
    if bool(is_global.any()):
        query = _heads(module.query_global(at), heads)
        key, value = _heads(module.key_global(hidden), heads), _heads(module.value_global(hidden), heads)
        seen = mask.bool()[:, None, None, :].expand(-1, 1, at.shape[1], -1)
        found = F.scaled_dot_product_attention(query, key, value, attn_mask=seen, dropout_p=drop)
        out = torch.where(is_global[..., None], found.transpose(1, 2).flatten(2), out)
    return out


def encode_at(
    model: LongformerModel, input_ids: Tensor, mask: Tensor, global_mask: Tensor, positions: Tensor
) -> Tensor:
    """Last hidden states of a Longformer at some positions, [B, K, D]; equal to transformers' own at real tokens.

    A head reads few positions, so the last layer is computed at those alone. Inputs longer than `DENSE_LIMIT` tokens go
    through transformers' chunked attention, whose memory grows linearly.

    Args:
        model: the encoder.
        input_ids: int64 [B, L], right-padded with the model's padding id; every row has at least one real token.
        mask: int64 [B, L], 1 = real.
        global_mask: int64 [B, L], 1 = token with global attention.
        positions: int64 [B, K], which tokens of each row are wanted.
    """
    index = positions[..., None].expand(-1, -1, model.config.hidden_size)
    if input_ids.shape[1] > DENSE_LIMIT:
        output: Tensor = model(input_ids, attention_mask=mask, global_attention_mask=global_mask).last_hidden_state
        return output.gather(1, index)
    hidden: Tensor = model.embeddings(input_ids=input_ids)
    global_mask = global_mask * mask
    has_global = bool(global_mask.any())
    masks: dict[int, Tensor] = {}
    last = len(model.encoder.layer) - 1
    for number, layer in enumerate(model.encoder.layer):
        module = layer.attention.self
        window = module.one_sided_attn_window_size
        if window not in masks:
            masks[window] = attention_mask(mask, global_mask, window)
        if number < last:
            attended = self_attention(module, hidden, mask, global_mask, masks[window], has_global)
        else:
            attended = _attend_at(module, hidden, mask, global_mask, masks[window], positions)
            hidden = hidden.gather(1, index)
        attended = layer.attention.output(attended, hidden)
        hidden = layer.output(layer.intermediate(attended), attended)
    return hidden
