"""T5's forward passes with the work of a prompt done once for all of its responses.

Computes with the own weights of transformers' T5 family (T5, T5 v1.1, Flan-T5, mT5, UMT5), so adapters, autocast and
gradients work as always. An encoder pass and the cross-attention's keys and values belong to a prompt; the responses to
it attend as further query rows. Attention is `scaled_dot_product_attention`. In training mode (dropout) transformers'
own forward runs instead (`families/seq2seq.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from finegrained_rlhf.core.records import on_device
from finegrained_rlhf.models.families.compiled import of_block
from finegrained_rlhf.models.families.fused import FusedLinear, products
from finegrained_rlhf.models.families.heads import Head
from finegrained_rlhf.runtime.sharding.shards import computed

_FAMILY = ("t5", "mt5", "umt5")
ALIGNED = 8
"""Length of which the fused kernels' masks are a multiple on CUDA; others are copied, in every layer and both ways."""


def is_t5(model: Any) -> bool:
    """True for models whose decoder and encoder this module can compute."""
    stacks = (getattr(model, "encoder", None), getattr(model, "decoder", None))
    return model.config.model_type in _FAMILY and all(hasattr(stack, "block") for stack in stacks)


def computes(model: Any) -> bool:
    """True where this module's passes stand for the model's own: in evaluation mode, not in fp16."""
    return is_t5(model) and not model.training and next(model.parameters()).dtype != torch.float16


def t5_encode(model: Any, ids: Tensor, mask: Tensor) -> Tensor:
    """Encoder output [P, L, D] of prompts.

    Args:
        model: one that this module `computes`.
        ids: int64 [P, L], right-padded.
        mask: int64 [P, L], 1 = real; or bool [P, L, L], True where a token (first) sees another.
    """
    stack = model.encoder
    hidden: Tensor = stack.embed_tokens(ids)
    bias: Tensor | None = None
    for block in stack.block:
        attention = block.layer[0].SelfAttention
        if attention.has_relative_attention_bias:
            bias = relative_bias(attention, ids.shape[1], bidirectional=True)
            bias = _as_computed(bias.masked_fill(~_seen(mask), -torch.inf))
        hidden = _run(block, _encoder_block, block, hidden, bias)
    states: Tensor = stack.final_layer_norm(hidden)
    return states


def _seen(mask: Tensor) -> Tensor:
    """A mask of tokens [P, L], or of pairs [P, Q, L], as a bool one that broadcasts to [P, H, Q, L]."""
    return mask.bool()[:, None, None] if mask.ndim == 2 else mask[:, None]


def t5_decoder_states(
    model: Any, states: Tensor, mask: Tensor, prompt_index: Tensor, inputs: Tensor, own: Tensor | None = None
) -> Tensor:
    """Last decoder hidden states [R, T, D] of decoder inputs.

    Args:
        model: one that this module `computes`.
        states: float [P, L, D], the encoded prompts.
        mask: int64 [P, L]; or bool [R, T, L], True where an input sees a token of the prompt, each row with its own.
        prompt_index: int64 [R], the prompt of each row. The work of a prompt is shared where its rows are contiguous
            and every prompt has equally many.
        inputs: int64 [R, T], start token first. Padding needs no mask: it comes last, and real tokens look back only.
        own: bool [R, T, T], which earlier inputs each may see; None for all.
    """
    if not rows_are_shared(prompt_index, states.shape[0]):
        rows = on_device(prompt_index, states.device)
        states, mask = states[rows], mask[rows]
    stack = model.decoder
    hidden: Tensor = stack.embed_tokens(inputs)
    seen = _seen(mask)
    bias: Tensor | None = None
    for block in stack.block:
        attention = block.layer[0].SelfAttention
        if attention.has_relative_attention_bias:
            bias = causal_bias(attention, inputs.shape[1])
            bias = _as_computed(bias if own is None else bias.masked_fill(~own[:, None], -torch.inf))
        hidden = _run(block, _decoder_block, block, hidden, bias, states, seen)
    last: Tensor = stack.final_layer_norm(hidden)
    return last


def head(model: Any, product: Head, hidden: Tensor) -> Tensor:
    """Logits [..., V] of a decoder's last hidden states [..., D], by what `lm_head` multiplies.

    T5 and UMT5 scale the states by d_model^−½ first, T5 v1.1 and mT5 do not.
    """
    scale = head_scale(model.config)
    return product(hidden if scale == 1.0 else hidden * scale)


def head_scale(config: Any) -> float:
    """The factor on the last hidden state before the language-model head."""
    scales = getattr(config, "scale_decoder_outputs", config.tie_word_embeddings and config.model_type != "mt5")
    return config.d_model**-0.5 if scales else 1.0


def rows_are_shared(prompt_index: Tensor, prompts: int) -> bool:
    """True when the rows of each prompt are contiguous, in order, and equally many; `prompt_index` is int64 [R]."""
    rows = prompt_index.shape[0]
    if prompts == 0 or rows % prompts:
        return False
    size = rows // prompts
    return prompt_index.tolist() == [row // size for row in range(rows)]


def relative_bias(attention: Any, length: int, bidirectional: bool) -> Tensor:
    """Relative position bias [1, H, L, L] (query, key) of a self-attention that has one."""
    position = torch.arange(length, device=attention.relative_attention_bias.weight.device)
    buckets = relative_buckets(
        position[None, :] - position[:, None],
        bidirectional,
        attention.relative_attention_num_buckets,
        attention.relative_attention_max_distance,
    )
    bias: Tensor = attention.relative_attention_bias(buckets)
    return bias.permute(2, 0, 1).unsqueeze(0)


def causal_bias(attention: Any, length: int) -> Tensor:
    """The decoder's relative position bias [1, H, T, T], −inf where a query would see a later key."""
    bias = relative_bias(attention, length, bidirectional=False)
    later = torch.ones(length, length, dtype=torch.bool, device=bias.device).triu(1)
    return bias.masked_fill(later, -torch.inf)


def _as_computed(bias: Tensor) -> Tensor:
    """The bias in the dtype of autocast, if any: cast and kept for the backward pass once, not in every layer.

    Its gradient is then summed over the layers in that dtype, of whose rounding every term has its share already.
    """
    device = bias.device.type
    return bias.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else bias


def relative_buckets(distance: Tensor, bidirectional: bool, buckets: int, max_distance: int) -> Tensor:
    """Bucket of each distance key − query (Raffel et al. 2020, section 2.1).

    Half of the buckets of a direction are exact, the other half grow logarithmically up to `max_distance`, beyond
    which all distances share the last one.

    Args:
        distance: int64 [...].
        bidirectional: an encoder's; a decoder has one direction, in which later keys count as distance 0.
        buckets: how many there are.
        max_distance: in tokens.
    """
    offset = torch.zeros_like(distance)
    if bidirectional:
        buckets //= 2
        offset = (distance > 0).long() * buckets
        away = distance.abs()
    else:
        away = (-distance).clamp(min=0)
    exact = buckets // 2
    growth = torch.log(away.clamp(min=1).float() / exact) / math.log(max_distance / exact) * (buckets - exact)
    far = (exact + growth.long()).clamp(max=buckets - 1)
    return offset + torch.where(away < exact, away, far)


def heads(x: Tensor, width: int) -> Tensor:
    """[..., T, H·d] to [..., H, T, d], d = `width`."""
    return x.unflatten(-1, (-1, width)).transpose(-3, -2)


def _run(block: Any, function: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """One block, recomputed in the backward pass where gradient checkpointing is on."""
    return computed(block, _forward, block, function, *arguments)


def _forward(block: Any, function: Callable[..., Tensor], *arguments: Any) -> Tensor:
    function = of_block(block, function)
    if getattr(block, "gradient_checkpointing", False) and torch.is_grad_enabled():
        result: Tensor = checkpoint(function, *arguments, use_reentrant=False)  # type: ignore[no-untyped-call]
        return result
    return function(*arguments)


def _self_attention(layer: Any, hidden: Tensor, bias: Tensor | None) -> Tensor:
    module, normed = layer.SelfAttention, layer.layer_norm(hidden)
    projected = products(normed, module.q, module.k, module.v)
    query, key, value = (heads(states, module.key_value_proj_dim) for states in projected)
    out = attend(query, key, value, bias)
    return hidden + products(out.transpose(1, 2).flatten(2), module.o)[0]


def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
    """T5's attention: no scale on the scores; `bias` is added to them (or says which keys are seen, where bool).

    On the CPU no fused kernel gives the gradient of a bias, so attention with one is written out there, also where no
    gradient is asked for: scoring, reference and update then round alike, and their ratio is exactly 1 at the start.

    Args:
        query: float [B, H, Q, d].
        key: float [B, H, K, d].
        value: float [B, H, K, d].
        bias: float, or bool, that broadcasts to [B, H, Q, K]; None for none.

    Returns:
        float [B, H, Q, d].
    """
    if bias is None or bias.dtype == torch.bool or query.is_cuda:
        mask = bias if bias is None or bias.dtype == torch.bool else bias.to(query.dtype)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=1.0)
    return (query @ key.transpose(-2, -1) + bias.to(query.dtype)).softmax(dim=-1) @ value


def _encoder_block(block: Any, hidden: Tensor, bias: Tensor | None) -> Tensor:
    return _feed_forward(block, _self_attention(block.layer[0], hidden, bias))


def _decoder_block(block: Any, hidden: Tensor, bias: Tensor | None, states: Tensor, seen: Tensor) -> Tensor:
    """One decoder block over R rows.

    Args:
        block: the module.
        hidden: [R, T, D].
        bias: [1, H, T, T].
        states: [P, L, D]; R is a multiple of P, the rows of a prompt are contiguous.
        seen: bool [P, 1, 1, L].
    """
    hidden = _self_attention(block.layer[0], hidden, bias)
    layer, (rows, length, _) = block.layer[1], hidden.shape
    module, width = layer.EncDecAttention, layer.EncDecAttention.key_value_proj_dim
    query = products(layer.layer_norm(hidden), module.q)[0].unflatten(0, (states.shape[0], -1)).flatten(1, 2)
    key, value = (heads(projected, width) for projected in products(states, module.k, module.v))
    out = attend(heads(query, width), key, value, seen)
    out = out.transpose(1, 2).reshape(rows, length, -1)
    return _feed_forward(block, hidden + products(out, module.o)[0])


def _feed_forward(block: Any, hidden: Tensor) -> Tensor:
    part = block.layer[-1]
    dense = part.DenseReluDense
    if not isinstance(dense.wo, FusedLinear):
        out: Tensor = part(hidden)
        return out
    gate, *linear = products(part.layer_norm(hidden), *(getattr(dense, name) for name in inner_names(dense)))
    inner = dense.act(gate) * linear[0] if linear else dense.act(gate)
    return hidden + products(inner, dense.wo)[0]


def inner_names(dense: Any) -> tuple[str, ...]:
    """The inner projections of a feed-forward part, gate first."""
    return ("wi_0", "wi_1") if hasattr(dense, "wi_0") else ("wi",)
