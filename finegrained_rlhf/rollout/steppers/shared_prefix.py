"""Attention of one decoding step where the N rows of a prompt share its keys and values.

A model whose configuration names `SHARED_PREFIX` as its attention hands queries, keys and values of every layer to the
`attend=…` of its call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from finegrained_rlhf.rollout.steppers.base import Block

SHARED_PREFIX = "finegrained_shared_prefix"
"""The name of the attention function in transformers' registry; no mask is registered under it, so that models build
none."""


@dataclass(frozen=True)
class Scores:
    """What a layer says of its attention scores.

    Attributes:
        layer: its number.
        scale: factor of the scores.
        softcap: c of c · tanh(score / c), or None.
        window: w of a layer that sees the last w positions only, its own included; None sees all.
    """

    layer: int
    scale: float
    softcap: float | None
    window: int | None


Attend = Callable[[Tensor, Tensor, Tensor, Scores], Tensor]
"""queries [B, H, T, d], keys and values [B, K, T, d] of one layer's new tokens (H a multiple of K), scores → [B, T, H,
d]."""


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    attend: Attend,
    scaling: float,
    softcap: float | None = None,
    sliding_window: int | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """As transformers calls it; [B, T, H, d] and no weights."""
    return attend(query, key, value, Scores(module.layer_idx, scaling, softcap, sliding_window)), None


ALL_ATTENTION_FUNCTIONS.register(SHARED_PREFIX, _attention)


@dataclass
class _LayerCache:
    """Keys and values of one layer.

    Attributes:
        prefix_keys, prefix_values: [P, K, L, d] of the prompts without their last token.
        keys, values: [P, K, N, T, d] of each row from its last prompt token on.
    """

    prefix_keys: Tensor
    prefix_values: Tensor
    keys: Tensor
    values: Tensor


class SharedPrefixCache:
    """Keys and values of P prefixes and of their P·N rows, in tensors that keep their place.

    Args:
        lengths: int64 [P], tokens of each prefix, 0 or more.
        width: L, positions that a prefix has room for.
        samples: N rows a prompt.
        limit: T, positions that a row has room for.
    """

    def __init__(self, lengths: Tensor, width: int, samples: int, limit: int) -> None:
        self.lengths, self.width, self.samples, self.limit = lengths, width, samples, limit
        self.layers: dict[int, _LayerCache] = {}

    def prefill(self, queries: Tensor, keys: Tensor, values: Tensor, scores: Scores) -> Tensor:
        """Keep a layer's keys and values of right-padded prefixes [P, K, L, d], and attend; see `Attend`.

        Padding needs no mask here: it comes last, and real tokens look back only.
        """
        keys = keys.to(values.dtype)  # under autocast rotary positions make fp32 of them, which attention would undo
        if scores.layer not in self.layers:
            shape = (*keys.shape[:2], self.samples, self.limit, keys.shape[3])
            own = keys.new_zeros(2, *shape)
            self.layers[scores.layer] = _LayerCache(keys.contiguous(), values.contiguous(), own[0], own[1])
        else:
            layer = self.layers[scores.layer]
            layer.prefix_keys.copy_(keys)
            layer.prefix_values.copy_(values)
        return _causal_attention(queries, keys, values, scores)

    def step(self, position: Tensor, window: int) -> Attend:
        """Attention of the rows' tokens [P·N] at `position` int64 [1], over their first `window` positions."""
        return _Step(self, position.view(1, 1, 1), window).attend

    def block(self, block: Block) -> Attend:
        """Attention of tokens [M] of some rows: queries [1, H, M, d], keys and values [1, K, M, d] → [1, M, H, d]."""
        prompts, rows = len(self.lengths), len(self.lengths) * self.samples
        places = block.padded(block.places, rows).view(prompts, self.samples, block.width)
        return _BlockStep(self, places, block).attend

    def keep(self, prompts: Tensor, rows: Tensor) -> None:
        """Go on with prompts int64 [P'] and rows int64 [P'·N'].

        Prefixes narrow to the longest that stays (waits for the device once).
        """
        self.lengths = self.lengths[prompts]
        self.width = max(int(self.lengths.max()), 1)
        rows = rows.view(len(prompts), -1)
        for layer in self.layers.values():  # one layer at a time: the old caches never lie beside all the new
            heads = torch.arange(layer.keys.shape[1], device=rows.device)[None, :, None]
            place = ((rows // self.samples).unsqueeze(1), heads, (rows % self.samples).unsqueeze(1))
            layer.keys, layer.values = layer.keys[place], layer.values[place]
            layer.prefix_keys = layer.prefix_keys[:, :, : self.width].index_select(0, prompts)
            layer.prefix_values = layer.prefix_values[:, :, : self.width].index_select(0, prompts)
        self.samples = rows.shape[1]


class _Step:
    """One step's attention: masks are made once for the layers that share them.

    Args:
        cache: of the rows.
        places: int64 [P, N, B], the positions of each row's B queries; P and N are 1 where all rows have the same.
        window: cache positions of a row to attend over.
    """

    def __init__(self, cache: SharedPrefixCache, places: Tensor, window: int) -> None:
        self.cache, self.places, self.window = cache, places, window
        self._biases: dict[int | None, Tensor] = {}

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, scores: Scores) -> Tensor:
        """One new token of every row over its prompt's prefix and its own tokens; see `Attend` with T = 1."""
        layer = self.cache.layers[scores.layer]
        prompts, heads, samples, _, width = layer.keys.shape
        for cached, new in ((layer.keys, keys), (layer.values, values)):
            new = new.to(cached.dtype).reshape(prompts, samples, heads, 1, width)
            cached.index_copy_(3, self.places.flatten(), new.transpose(1, 2))
        return self._attended(queries, layer, scores)

    def _attended(self, queries: Tensor, layer: _LayerCache, scores: Scores) -> Tensor:
        """Each query of rows [R, H, B, d], under one softmax → [R, B, H, d].

        The N·G·B queries that read one key head of a prompt (G = H / K) stand together, so that the prefix is read once
        for all of them.
        """
        prompts, heads, samples, _, width = layer.keys.shape
        shape = queries.shape
        own_keys, own_values = layer.keys[:, :, :, : self.window], layer.values[:, :, :, : self.window]
        queries = queries.reshape(prompts, samples, heads, -1, width).transpose(1, 2)
        queries = layer.keys.new_empty(queries.shape).copy_(queries)  # [P, K, N, G·B, d], cast and laid out at once
        grouped, split = queries.flatten(2, 3), layer.prefix_keys.shape[2]
        products = queries.new_empty(*grouped.shape[:3], split + own_keys.shape[3])
        torch.matmul(grouped, layer.prefix_keys.transpose(2, 3), out=products[..., :split])
        own_products = products[..., split:].unflatten(2, (samples, -1))
        torch.matmul(queries, own_keys.transpose(3, 4), out=own_products)
        bias = self._bias(scores.window, shape[1] // heads)
        weights = _softmax(products, bias, scores).to(layer.values.dtype)
        shared = weights[..., :split] @ layer.prefix_values
        own = weights[..., split:].unflatten(2, (samples, -1)) @ own_values
        attended = own.new_empty(prompts, samples, heads, own.shape[3], width)
        torch.add(shared.view(own.shape).transpose(1, 2), own.transpose(1, 2), out=attended)
        return attended.view(shape).transpose(1, 2)

    def _bias(self, window: int | None, groups: int) -> Tensor:
        """fp32 [P, 1, 1 or N·G·B, L + window], 0 where a query sees a key and −inf elsewhere."""
        cache = self.cache
        if window is not None and window >= cache.width + cache.limit:
            window = None
        if window not in self._biases:
            keys = torch.arange(max(cache.width, self.window), device=self.places.device)
            lengths, places = cache.lengths[:, None, None, None], self.places.unsqueeze(3)
            prefix, own = keys[: cache.width] < lengths, keys[: self.window] <= places
            if window is not None:
                prefix = prefix & (lengths + places - keys[: cache.width] < window)
                own = own & (places - keys[: self.window] < window)
            shape = torch.broadcast_shapes(prefix.shape[:3], own.shape[:3])
            visible = torch.cat([prefix.expand(*shape, -1), own.expand(*shape, -1)], dim=3)
            bias = torch.zeros(visible.shape, device=visible.device).masked_fill_(~visible, -torch.inf)
            if shape[1:] != (1, 1):
                bias = bias.unsqueeze(2).expand(-1, -1, groups, -1, -1).flatten(2, 3)
            self._biases[window] = bias.flatten(1, 2).unsqueeze(1)
        return self._biases[window]


class _BlockStep(_Step):
    """One step's attention of a `Block`."""

    def __init__(self, cache: SharedPrefixCache, places: Tensor, block: Block) -> None:
        super().__init__(cache, places, block.window)
        self.block = block

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, scores: Scores) -> Tensor:
        """See `SharedPrefixCache.block`."""
        layer, block, samples = self.cache.layers[scores.layer], self.block, self.cache.samples
        for cached, new in ((layer.keys, keys), (layer.values, values)):
            new = new.to(cached.dtype).squeeze(0).transpose(0, 1)
            cached[block.rows // samples, :, block.rows % samples, block.places] = new
        rows = layer.keys.shape[0] * samples
        padded = block.padded(queries.squeeze(0).transpose(0, 1), rows).transpose(1, 2)
        return block.flat(self._attended(padded, layer, scores)).unsqueeze(0)


def _softmax(products: Tensor, bias: Tensor, scores: Scores) -> Tensor:
    """fp32 softmax of the scaled and capped products plus a bias; in bf16 the products themselves are rounded."""
    if scores.softcap is None:
        return torch.add(bias, products, alpha=scores.scale).softmax(dim=-1)
    capped = torch.tanh(products * (scores.scale / scores.softcap)) * scores.softcap
    return (capped + bias).softmax(dim=-1)


def _causal_attention(queries: Tensor, keys: Tensor, values: Tensor, scores: Scores) -> Tensor:
    """Attention of whole prefixes, each token over those before it (or the window's); see `Attend`."""
    length, groups = queries.shape[2], queries.shape[1] // keys.shape[1]
    if groups > 1:
        keys, values = keys.repeat_interleave(groups, dim=1), values.repeat_interleave(groups, dim=1)
    windowed = scores.window is not None and scores.window < length
    if scores.softcap is None and not windowed:
        attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True, scale=scores.scale)
        return attended.transpose(1, 2)
    places = torch.arange(length, device=queries.device)
    distance = places[:, None] - places
    visible = distance >= 0
    if scores.window is not None:
        visible = visible & (distance < scores.window)
    if scores.softcap is None:
        attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=visible, scale=scores.scale)
        return attended.transpose(1, 2)
    bias = torch.zeros(visible.shape, device=visible.device).masked_fill_(~visible, -torch.inf)
    weights = _softmax(queries @ keys.transpose(2, 3), bias, scores).to(values.dtype)
    return (weights @ values).transpose(1, 2)
