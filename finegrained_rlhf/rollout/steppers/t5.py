"""One decoder step of a T5-family policy over static caches; see `Stepper` for the contract.

Weights are read once a rollout: adapters added in, in the dtype of the forward pass, query, key and value of the
self-attention as one matrix. The cross-attention's keys and values belong to a prompt, its N rows attend as N query
rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from finegrained_rlhf.models.families import t5
from finegrained_rlhf.models.families.heads import bf16_product
from finegrained_rlhf.models.policy import Policy, PromptMemory, Seq2SeqPolicy
from finegrained_rlhf.rollout.steppers.snapshot import compute_dtype, effective_weight, is_plain

_HEAD_ROWS = 1024


@dataclass
class _Layer:
    """Weights and caches of one decoder block.

    Attributes:
        block: the module, for its norms and its activation.
        qkv: [3·H·d, D], self-attention.
        out: [D, H·d].
        cross_query: [H·d, D].
        cross_out: [D, H·d].
        inner: [F, D], or [2·F, D] where the feed-forward part is gated (gate first).
        outer: [D, F].
        bias: [T, H, T], the row of each query position, −inf at later keys.
        keys, values: [R, H, T, d], self-attention cache.
        cross_keys, cross_values: [P, H, L, d].
    """

    block: Any
    qkv: Tensor
    out: Tensor
    cross_query: Tensor
    cross_out: Tensor
    inner: Tensor
    outer: Tensor
    bias: Tensor
    keys: Tensor
    values: Tensor
    cross_keys: Tensor
    cross_values: Tensor


def supports_t5(policy: Policy) -> bool:
    """True when the decoder's modules do nothing that their weights do not say (hooks, other adapters than LoRA)."""
    model = policy.model
    if not isinstance(policy, Seq2SeqPolicy) or not t5.is_t5(model) or len(policy.start_ids) != 1:
        return False
    if model.training or model.decoder.embed_tokens.weight.dtype == torch.float16:
        return False
    attentions = [layer for block in model.decoder.block for layer in (_self(block), _cross(block))]
    linear = [getattr(attention, name) for attention in attentions for name in "qkvo"]
    for block in model.decoder.block:
        dense = block.layer[-1].DenseReluDense
        linear += [*(getattr(dense, name) for name in _inner_names(dense)), dense.wo]
    return all(is_plain(module) for module in linear)


def _self(block: Any) -> Any:
    return block.layer[0].SelfAttention


def _cross(block: Any) -> Any:
    return block.layer[1].EncDecAttention


def _inner_names(dense: Any) -> tuple[str, ...]:
    return ("wi_0", "wi_1") if hasattr(dense, "wi_0") else ("wi",)


class T5Stepper:
    """Static caches and plain weights of a T5 decoder.

    Args:
        policy: whose weights are read.
        memory: P encoded prompts.
        samples: N rows a prompt.
        max_new_tokens: T, longest response.
    """

    def __init__(self, policy: Policy, memory: PromptMemory, samples: int, max_new_tokens: int) -> None:
        assert memory.states is not None and isinstance(policy, Seq2SeqPolicy)
        self.policy, self.model = policy, policy.model
        prompts, self.limit = memory.states.shape[0], max_new_tokens
        device = memory.states.device
        self.first_tokens = torch.full((prompts * samples,), policy.start_ids[0], dtype=torch.long, device=device)
        self._width: int = _self(self.model.decoder.block[0]).key_value_proj_dim
        self.layers, self.seen, self.head = self._read(memory, samples)

    def reload(self, memory: PromptMemory) -> None:
        """See `Stepper.reload`. What lies in the self-attention's caches is masked until it is written again."""
        layers, seen, head = self._read(memory, self.first_tokens.shape[0] // memory.prompt_ids.shape[0], self.layers)
        for old, new in zip(self.layers, layers, strict=True):
            for name, tensor in vars(old).items():
                if isinstance(tensor, Tensor):
                    tensor.copy_(getattr(new, name))
        self.seen.copy_(seen)
        if self.head is not None and head is not None:
            self.head.copy_(head)

    def _read(
        self, memory: PromptMemory, samples: int, old: Sequence[_Layer] | None = None
    ) -> tuple[list[_Layer], Tensor, Tensor | None]:
        """Layers, the prompts' mask (0 or −inf, [P, 1, 1, L]) and the head's weight; caches are those of `old`."""
        assert memory.states is not None
        layers: list[_Layer] = []
        bias: Tensor | None = None
        for number, block in enumerate(self.model.decoder.block):
            own, cross, dense = _self(block), _cross(block), block.layer[-1].DenseReluDense
            if own.has_relative_attention_bias:
                bias = t5.causal_bias(own, self.limit)[0].transpose(0, 1).contiguous()
            assert bias is not None
            qkv = _weight(own.q, own.k, own.v)
            states = memory.states.to(qkv.dtype)
            shape = (states.shape[0] * samples, own.n_heads, self.limit, self._width)
            layers.append(
                _Layer(
                    block=block,
                    qkv=qkv,
                    out=_weight(own.o),
                    cross_query=_weight(cross.q),
                    cross_out=_weight(cross.o),
                    inner=_weight(*(getattr(dense, name) for name in _inner_names(dense))),
                    outer=_weight(dense.wo),
                    bias=bias.to(qkv.dtype),
                    keys=old[number].keys if old else states.new_zeros(shape),
                    values=old[number].values if old else states.new_zeros(shape),
                    cross_keys=t5.heads(F.linear(states, _weight(cross.k)), self._width).contiguous(),
                    cross_values=t5.heads(F.linear(states, _weight(cross.v)), self._width).contiguous(),
                )
            )
        mask = memory.prompt_mask.bool()[:, None, None, :]
        seen = torch.zeros(mask.shape, dtype=layers[0].qkv.dtype, device=mask.device).masked_fill(~mask, -torch.inf)
        lm_head = self.model.lm_head
        return layers, seen, _weight(lm_head) if is_plain(lm_head) else None

    def logits(self, tokens: Tensor, position: Tensor, window: int) -> Tensor:
        """See `Stepper.logits`: tokens int64 [P·N] at position int64 [1] → float [P·N, V]."""
        decoder = self.model.decoder
        hidden: Tensor = decoder.embed_tokens(tokens)
        for layer in self.layers:
            hidden = hidden + self._attend_own(layer, hidden, position, window)
            hidden = hidden + self._attend_prompt(layer, hidden)
            hidden = hidden + self._feed_forward(layer, hidden)
        hidden = decoder.final_layer_norm(hidden)
        if self.head is None:
            return self.policy.head(hidden)
        hidden = (hidden * t5.head_scale(self.model.config)).to(self.head.dtype)
        multiply = bf16_product if hidden.dtype == torch.bfloat16 else torch.mm
        if self.head.is_cuda:
            return multiply(hidden, self.head.t())
        # Few rows against a large vocabulary: on a CPU, products that fit its cache take two thirds of the time.
        return torch.cat([multiply(hidden, part.t()) for part in self.head.split(_HEAD_ROWS)], dim=-1)

    def _attend_own(self, layer: _Layer, hidden: Tensor, position: Tensor, window: int) -> Tensor:
        normed = layer.block.layer[0].layer_norm(hidden).to(layer.qkv.dtype)
        query, key, value = F.linear(normed, layer.qkv).unflatten(1, (3, -1, 1, self._width)).unbind(1)
        layer.keys.index_copy_(2, position, key)
        layer.values.index_copy_(2, position, value)
        bias = layer.bias.index_select(0, position)[:, :, None, :window]
        out = _attend(query, layer.keys[:, :, :window], layer.values[:, :, :window], bias)
        return F.linear(out.flatten(1), layer.out)

    def _attend_prompt(self, layer: _Layer, hidden: Tensor) -> Tensor:
        normed = layer.block.layer[1].layer_norm(hidden).to(layer.qkv.dtype)
        query = F.linear(normed, layer.cross_query).unflatten(0, (layer.cross_keys.shape[0], -1))
        out = _attend(t5.heads(query, self._width), layer.cross_keys, layer.cross_values, self.seen)
        return F.linear(out.transpose(1, 2).reshape(hidden.shape[0], -1), layer.cross_out)

    def _feed_forward(self, layer: _Layer, hidden: Tensor) -> Tensor:
        part = layer.block.layer[-1]
        inner = F.linear(part.layer_norm(hidden).to(layer.inner.dtype), layer.inner)
        dense = part.DenseReluDense
        if hasattr(dense, "wi_0"):
            gate, linear = inner.chunk(2, dim=-1)
            inner = dense.act(gate) * linear
        else:
            inner = dense.act(inner)
        return F.linear(inner.to(layer.outer.dtype), layer.outer)

    def keep(self, prompts: Tensor, rows: Tensor) -> None:
        """See `Stepper.keep`: prompts int64 [P'] and rows int64 [P'·N'] that stay."""
        self.first_tokens, self.seen = self.first_tokens[rows], self.seen[prompts]
        for layer in self.layers:
            layer.keys, layer.values = layer.keys[rows], layer.values[rows]
            layer.cross_keys, layer.cross_values = layer.cross_keys[prompts], layer.cross_values[prompts]


def _attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """T5's attention without gradients: no scale on the scores, `bias` added to them."""
    return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=1.0)


def _weight(*modules: Any) -> Tensor:
    """The weights of linear layers below each other, in the dtype that they compute in."""
    weights = [effective_weight(module) for module in modules]
    dtype = compute_dtype(weights[0])
    weights = [weight.detach().to(dtype) for weight in weights]
    return weights[0] if len(weights) == 1 else torch.cat(weights)
