"""One decoder step of a T5-family policy over static caches; see `Stepper` for the contract.

Weights are read once a rollout: adapters added in, in the dtype of the forward pass, query, key and value of the
self-attention as one matrix, and so the two inner projections of a gated feed-forward part; where a layer needs no
change its memory is shared. The cross-attention's keys and values belong to a prompt, its N rows attend as N query
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
from finegrained_rlhf.models.families.fused import FusedNorm, add_product, sums_in_product
from finegrained_rlhf.models.families.heads import bf16_product
from finegrained_rlhf.models.policy import Policy, PromptMemory, Seq2SeqPolicy
from finegrained_rlhf.rollout.steppers.base import Block
from finegrained_rlhf.rollout.steppers.snapshot import StackedWeights, WeightsOfNow, autocast_of_now, is_plain


@dataclass(frozen=True)
class BlockWeights:
    """Weights of one decoder block.

    Attributes:
        block: the module, for its norms and its activation.
        qkv: [3·H·d, D], self-attention.
        out: [D, H·d].
        cross_query, cross_key, cross_value: [H·d, D].
        cross_out: [D, H·d].
        inner: [F, D], or [2·F, D] where the feed-forward part is gated (gate first).
        outer: [D, F].
    """

    block: Any
    qkv: Tensor
    out: Tensor
    cross_query: Tensor
    cross_key: Tensor
    cross_value: Tensor
    cross_out: Tensor
    inner: Tensor
    outer: Tensor


class T5Weights(StackedWeights):
    """The weights of all blocks, of embeddings and head, read from a policy now.

    Args:
        policy: whose decoder's linear layers are plain (see `is_plain`).

    Attributes:
        blocks: in order.
        embed: maps tokens to states.
        head: [V, D]; None where the head is more than a linear layer.
    """

    @torch.no_grad()
    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.blocks = [self._block(block) for block in policy.model.decoder.block]
        self.embed = self.table(policy.model.decoder.embed_tokens)
        lm_head = policy.model.lm_head
        self.head = self.weight(lm_head) if is_plain(lm_head) else None

    def _block(self, block: Any) -> BlockWeights:
        own, cross, dense = block.layer[0].SelfAttention, block.layer[1].EncDecAttention, block.layer[-1].DenseReluDense
        return BlockWeights(
            block=block,
            qkv=self.weight(own.q, own.k, own.v),
            out=self.weight(own.o),
            cross_query=self.weight(cross.q),
            cross_key=self.weight(cross.k),
            cross_value=self.weight(cross.v),
            cross_out=self.weight(cross.o),
            inner=self.weight(*(getattr(dense, name) for name in t5.inner_names(dense))),
            outer=self.weight(dense.wo),
        )


t5_weights = WeightsOfNow(T5Weights)


_HEAD_ROWS = 1024


@dataclass
class _Caches:
    """What one decoder block reads besides weights.

    Attributes:
        bias: [T, H, T], the row of each query position, −inf at later keys; layers may share it.
        own: [2, R, H, T, d], keys and values of the self-attention.
        cross_keys, cross_values: [P, H, L, d].
    """

    bias: Tensor
    own: Tensor
    cross_keys: Tensor
    cross_values: Tensor


@dataclass(frozen=True)
class _EveryRow:
    """What a `Block` says where every row is fed one token at one position.

    Attributes:
        places: int64 [1].
        window: as a block's.
    """

    places: Tensor
    window: int

    def padded(self, tokens: Tensor, rows: int) -> Tensor:
        """[R, 1, …] of [R, …]."""
        return tokens.unsqueeze(1)

    def flat(self, padded: Tensor) -> Tensor:
        """[R, …] of [R, 1, …]."""
        return padded.squeeze(1)

    def write(self, cache: Tensor, new: Tensor) -> None:
        """Put new [R, 2, H, d] into a cache [2, R, H, T, d]."""
        cache.index_copy_(3, self.places, new.transpose(0, 1).unsqueeze(3))


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
        linear += [*(getattr(dense, name) for name in t5.inner_names(dense)), dense.wo]
    return all(is_plain(module) for module in linear)


def _self(block: Any) -> Any:
    return block.layer[0].SelfAttention


def _cross(block: Any) -> Any:
    return block.layer[1].EncDecAttention


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
        self._autocast = autocast_of_now(policy.device.type)
        fused = isinstance(self.model.decoder.final_layer_norm, FusedNorm)
        self._in_place = fused and sums_in_product(device)
        self.weights = t5_weights(policy)
        self.layers, self.seen = self._read(memory, samples)

    @property
    def kept_bytes(self) -> int:
        """See `ReloadableStepper.kept_bytes`."""
        tensors = {tensor.data_ptr(): tensor for layer in self.layers for tensor in vars(layer).values()}
        return sum(tensor.nbytes for tensor in tensors.values())

    @torch.no_grad()
    def reload(self, memory: PromptMemory) -> None:
        """See `ReloadableStepper.reload`. What lies in the self-attention's caches is masked until it is written."""
        self.weights.refresh()
        layers, seen = self._read(memory, self.first_tokens.shape[0] // memory.prompt_ids.shape[0], self.layers)
        for old, new in zip(self.layers, layers, strict=True):
            for name, tensor in vars(old).items():
                tensor.copy_(getattr(new, name))
        self.seen.copy_(seen)

    def _read(
        self, memory: PromptMemory, samples: int, old: Sequence[_Caches] | None = None
    ) -> tuple[list[_Caches], Tensor]:
        """Caches, the self-attention's those of `old`, and the prompts' mask (0 or −inf, [P, 1, 1, L])."""
        assert memory.states is not None
        caches: list[_Caches] = []
        bias: Tensor | None = None
        for number, weights in enumerate(self.weights.blocks):
            own = _self(weights.block)
            if own.has_relative_attention_bias:
                bias = t5.causal_bias(own, self.limit)[0].transpose(0, 1).to(weights.qkv.dtype).contiguous()
            assert bias is not None
            states = memory.states.to(weights.qkv.dtype)
            shape = (2, states.shape[0] * samples, own.n_heads, self.limit, self._width)
            caches.append(
                _Caches(
                    bias=bias,
                    own=old[number].own if old else states.new_zeros(shape),
                    cross_keys=t5.heads(F.linear(states, weights.cross_key), self._width).contiguous(),
                    cross_values=t5.heads(F.linear(states, weights.cross_value), self._width).contiguous(),
                )
            )
        mask = memory.prompt_mask.bool()[:, None, None, :]
        seen = torch.zeros(mask.shape, dtype=caches[0].own.dtype, device=mask.device).masked_fill(~mask, -torch.inf)
        return caches, seen

    def logits(self, tokens: Tensor, position: Tensor, window: int) -> Tensor:
        """See `Stepper.logits`: tokens int64 [P·N] at position int64 [1] → float [P·N, V]."""
        return self._run(tokens, _EveryRow(position, window))

    def block(self, tokens: Tensor, block: Block) -> Tensor:
        """See `BlockStepper.block`: tokens int64 [M] → float [M, V]."""
        return self._run(tokens, block)

    def _run(self, tokens: Tensor, fed: Block | _EveryRow) -> Tensor:
        with self._autocast():
            decoder = self.model.decoder
            hidden: Tensor = self.weights.embed(tokens)
            biases: dict[int, Tensor] = {}  # of each layer's bias, these positions: [R or 1, H, B, window]
            for weights, caches in zip(self.weights.blocks, self.layers, strict=True):
                if id(caches.bias) not in biases:
                    own = caches.bias.index_select(0, fed.places)[:, :, : fed.window]
                    biases[id(caches.bias)] = fed.padded(own, len(self.first_tokens)).transpose(1, 2)
                hidden = self._attend_own(weights, caches, hidden, fed, biases[id(caches.bias)])
                hidden = self._attend_prompt(weights, caches, hidden, fed)
                hidden = self._feed_forward(weights, hidden)
            return self._head(decoder.final_layer_norm(hidden))

    def _head(self, hidden: Tensor) -> Tensor:
        head = self.weights.head
        if head is None:
            return self.policy.head(hidden)
        hidden = (hidden * t5.head_scale(self.model.config)).to(head.dtype)
        if hidden.dtype == torch.bfloat16:
            return bf16_product(hidden, head.t())
        if head.is_cuda:
            return torch.mm(hidden, head.t())
        # Few rows against a large vocabulary: on a CPU, products that fit its cache take two thirds of the time.
        return torch.cat([torch.mm(hidden, part.t()) for part in head.split(_HEAD_ROWS)], dim=-1)

    def _attend_own(
        self, weights: BlockWeights, caches: _Caches, hidden: Tensor, fed: Block | _EveryRow, bias: Tensor
    ) -> Tensor:
        normed = weights.block.layer[0].layer_norm(hidden).to(weights.qkv.dtype)
        projected = F.linear(normed, weights.qkv).unflatten(1, (3, -1, self._width))
        fed.write(caches.own, projected[:, 1:])
        keys, values = caches.own[:, :, :, : fed.window]
        query = fed.padded(projected[:, 0], keys.shape[0]).transpose(1, 2)  # [R, H, B, d]
        out = fed.flat(_attend(query, keys, values, bias).transpose(1, 2))
        return add_product(hidden, out.flatten(1), weights.out, self._in_place)

    def _attend_prompt(self, weights: BlockWeights, caches: _Caches, hidden: Tensor, fed: Block | _EveryRow) -> Tensor:
        normed = weights.block.layer[1].layer_norm(hidden).to(weights.qkv.dtype)
        query = fed.padded(F.linear(normed, weights.cross_query), caches.own.shape[1])  # [R, B, H·d]
        grouped = query.flatten(0, 1).unflatten(0, (caches.cross_keys.shape[0], -1))
        out = _attend(t5.heads(grouped, self._width), caches.cross_keys, caches.cross_values, self.seen)
        out = fed.flat(out.transpose(1, 2).reshape(query.shape))
        return add_product(hidden, out, weights.cross_out, self._in_place)

    def _feed_forward(self, weights: BlockWeights, hidden: Tensor) -> Tensor:
        part = weights.block.layer[-1]
        inner = F.linear(part.layer_norm(hidden).to(weights.inner.dtype), weights.inner)
        dense = part.DenseReluDense
        if hasattr(dense, "wi_0"):
            gate, linear = inner.chunk(2, dim=-1)
            inner = dense.act(gate) * linear
        else:
            inner = dense.act(inner)
        return add_product(hidden, inner.to(weights.outer.dtype), weights.outer, self._in_place)

    def keep(self, prompts: Tensor, rows: Tensor) -> None:
        """See `Stepper.keep`: prompts int64 [P'] and rows int64 [P'·N'] that stay."""
        self.first_tokens, self.seen = self.first_tokens[rows], self.seen[prompts]
        for layer in self.layers:
            layer.own = layer.own[:, rows]
            layer.cross_keys, layer.cross_values = layer.cross_keys[prompts], layer.cross_values[prompts]


def _attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """T5's attention without gradients: no scale on the scores, `bias` added to them."""
    return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=1.0)
