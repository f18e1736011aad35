"""GPT-2 one token at a time, the prompt's keys and values shared by its samples.

Knows GPT-2's layers and how its caches lie; `FastEngine` owns the loop and the sampling (see
`rollout/steppers/base.py`). The prompts without their last token run once, P rows wide; the last token is what every
sample is fed at position 0. Weights are those at the time of opening, adapters added in, in the dtype that the
modules would compute in.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GPT2LMHeadModel

from finegrained_rlhf.core.errors import ModelError
from finegrained_rlhf.models.policy import CausalPolicy, Policy, PromptMemory
from finegrained_rlhf.rollout.steppers.snapshot import compute_dtype, effective_bias, effective_weight, is_plain


def supports_gpt2(policy: Policy) -> bool:
    """True when `open_gpt2` computes what the policy's own modules would.

    Hooks inside the transformer (also those that transformers leaves behind after a call with
    `output_hidden_states=True`), cross-attention, `reorder_and_upcast_attn` and adapters other than plain LoRA on the
    linear layers are not followed. Anything on the head is: it is called through `Policy.head` then. Dropout is off,
    whatever the modules' mode.
    """
    model = policy.model
    if not isinstance(policy, CausalPolicy) or type(model) is not GPT2LMHeadModel:
        return False
    if model.config.add_cross_attention or model.config.reorder_and_upcast_attn:
        return False
    body = model.transformer
    if any(m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m) for m in body.modules()):
        return False
    norms = [body.ln_f, *(norm for block in body.h for norm in (block.ln_1, block.ln_2))]
    if any(type(norm) is not nn.LayerNorm for norm in norms):
        return False
    if any(type(embedding) is not nn.Embedding for embedding in (body.wte, body.wpe)):
        return False
    return all(
        is_plain(linear)
        for block in body.h
        for linear in (block.attn.c_attn, block.attn.c_proj, block.mlp.c_fc, block.mlp.c_proj)
    )


def open_gpt2(policy: Policy, memory: PromptMemory, samples: int, max_new_tokens: int) -> GPT2Stepper:
    """Run the prompts once and start a stepper at position 0; an `OpenStepper`.

    Raises:
        ModelError: not a policy that `supports_gpt2` knows, or a prompt and its longest response together have more
            tokens than the model has positions.
    """
    if not supports_gpt2(policy):
        raise ModelError(f"the GPT-2 stepper does not serve this {type(policy.model).__name__}")
    longest, positions = int(memory.prompt_mask.sum(dim=1).max()), policy.model.transformer.wpe.num_embeddings
    if longest + max_new_tokens > positions:
        raise ModelError(
            f"the longest prompt has {longest} tokens and a response may have {max_new_tokens}, together "
            f"{longest + max_new_tokens}, but the model has {positions} positions (n_positions): shorten one of them"
        )
    return GPT2Stepper(policy, memory, samples, max_new_tokens)


class GPT2Stepper:
    """See `Stepper`. Its cache holds the last prompt token and all response tokens but the last: max_new_tokens.

    Args:
        policy: one that `supports_gpt2`.
        memory: P prompts.
        samples: N rows a prompt.
        max_new_tokens: longest response in tokens.
    """

    @torch.no_grad()
    def __init__(self, policy: Policy, memory: PromptMemory, samples: int, max_new_tokens: int) -> None:
        body = policy.model.transformer
        self._autocast = _autocast_of_now(policy.device.type)
        self._tokens, self._positions, self._norm = body.wte, body.wpe, body.ln_f
        self._layers = [_Layer.of(block, index, policy.model.config) for index, block in enumerate(body.h)]
        self._head = _head(policy)
        self._prefix_lengths = memory.prompt_mask.sum(dim=1) - 1
        last = memory.prompt_ids.gather(1, self._prefix_lengths.unsqueeze(1)).squeeze(1)
        self.first_tokens = last.repeat_interleave(samples)
        self._offsets = self._prefix_lengths.repeat_interleave(samples)
        width = int(self._prefix_lengths.max())
        self._prefix_bias = _bias(_positions(width, last.device) < self._prefix_lengths.unsqueeze(1))
        with self._autocast():
            prefixes = self._prefill(memory.prompt_ids[:, :width])
        self._caches = [_Cache.after(keys, values, samples, max_new_tokens) for keys, values in prefixes]

    def _prefill(self, ids: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Keys and values [P, H, L, d] of each layer for right-padded ids [P, L].

        Padding needs no mask here: it comes last, and real tokens look back only.
        """
        prefixes: list[tuple[Tensor, Tensor]] = []
        hidden = self._tokens(ids) + self._positions(_positions(ids.shape[1], ids.device))
        for layer in self._layers:
            queries, keys, values = (t.transpose(1, 2) for t in layer.queries_keys_values(hidden))
            prefixes.append((keys.contiguous(), values.contiguous()))
            if ids.shape[1] > 0 and len(prefixes) < len(self._layers):  # no one reads the last layer's output
                attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True, scale=layer.scale)
                hidden = layer.finish(hidden, attended.transpose(1, 2).flatten(2))
        return prefixes

    @torch.no_grad()
    def logits(self, tokens: Tensor, position: Tensor, window: int) -> Tensor:
        """See `Stepper.logits`: tokens int64 [P·N] at position int64 [1] → float [P·N, V]."""
        with self._autocast():
            hidden = self._tokens(tokens) + self._positions(self._offsets + position)
            own = _bias(_positions(window, position.device) <= position).expand(len(self._prefix_bias), -1)
            bias = torch.cat([self._prefix_bias, own], dim=1)[:, None, None]
            for layer, cache in zip(self._layers, self._caches, strict=True):
                queries, keys, values = layer.queries_keys_values(hidden)
                cache.write(keys, values, position)
                hidden = layer.finish(hidden, cache.attend(queries, bias, layer.scale))
            return self._head(self._norm(hidden))

    @torch.no_grad()
    def keep(self, prompts: Tensor, rows: Tensor) -> None:
        """See `Stepper.keep`: prompts int64 [P'] and rows int64 [P'·N'] that stay.

        The prompts' cache narrows to the longest that stays (waits for the device once).
        """
        self.first_tokens, self._offsets = self.first_tokens[rows], self._offsets[rows]
        self._prefix_lengths = self._prefix_lengths[prompts]
        width = int(self._prefix_lengths.max())
        self._prefix_bias = self._prefix_bias[prompts, :width]
        for index, cache in enumerate(self._caches):  # one layer at a time: the old caches never lie beside all the new
            self._caches[index] = cache.kept(prompts, rows, width)


@dataclass(frozen=True)
class _Layer:
    """One block as plain weights.

    Attributes:
        norm_1, norm_2: the layer norms before attention and feed-forward.
        qkv, out: linear maps of the attention, D → 3·D and D → D.
        up, act, down: the feed-forward layer.
        heads: H.
        scale: factor of the attention scores.
    """

    norm_1: nn.Module
    norm_2: nn.Module
    qkv: _Linear
    out: _Linear
    up: _Linear
    act: nn.Module
    down: _Linear
    heads: int
    scale: float

    @staticmethod
    def of(block: Any, index: int, config: Any) -> _Layer:
        """The weights of a `GPT2Block`, as they are now."""
        attention, mlp = block.attn, block.mlp
        scale = (config.hidden_size // config.num_attention_heads) ** -0.5 if config.scale_attn_weights else 1.0
        if config.scale_attn_by_inverse_layer_idx:
            scale /= index + 1
        return _Layer(
            block.ln_1,
            block.ln_2,
            qkv=_Linear.of(attention.c_attn),
            out=_Linear.of(attention.c_proj),
            up=_Linear.of(mlp.c_fc),
            act=mlp.act,
            down=_Linear.of(mlp.c_proj),
            heads=config.num_attention_heads,
            scale=scale,
        )

    def queries_keys_values(self, hidden: Tensor) -> tuple[Tensor, ...]:
        """Three tensors [..., H, d] from states [..., D]."""
        return self.qkv(self.norm_1(hidden)).unflatten(-1, (3, self.heads, -1)).unbind(-3)

    def finish(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """The block's output [..., D] from its input and the heads' joined outputs [..., D]."""
        hidden = hidden + self.out(attended)
        return hidden + self.down(self.act(self.up(self.norm_2(hidden))))


@dataclass(frozen=True)
class _Linear:
    """Weight [out, in] and bias [out] or None, in the dtype to compute in."""

    weight: Tensor
    bias: Tensor | None

    @staticmethod
    def of(module: Any) -> _Linear:
        weight, bias = effective_weight(module), effective_bias(module)
        dtype = compute_dtype(weight)
        if dtype != weight.dtype:  # a copy anyway, so lay it out for reading; otherwise share the module's memory
            weight = weight.to(dtype, memory_format=torch.contiguous_format)
        return _Linear(weight, None if bias is None else bias.to(dtype))

    def __call__(self, states: Tensor) -> Tensor:
        return F.linear(states.to(self.weight.dtype), self.weight, self.bias)


@dataclass(frozen=True)
class _Cache:
    """Keys and values of one layer.

    Attributes:
        prefix_keys, prefix_values: [P, H, L, d] of the prompts without their last token.
        keys, values: [P·N, H, max_new_tokens, d] of each row from its last prompt token on.
    """

    prefix_keys: Tensor
    prefix_values: Tensor
    keys: Tensor
    values: Tensor

    @staticmethod
    def after(keys: Tensor, values: Tensor, samples: int, length: int) -> _Cache:
        """Behind the prompts' keys and values [P, H, L, d], room for `length` tokens of each of their samples."""
        prompts, heads, _, width = keys.shape
        own = keys.new_zeros(2, prompts * samples, heads, length, width)
        return _Cache(keys, values, own[0], own[1])

    def write(self, keys: Tensor, values: Tensor, position: Tensor) -> None:
        """Put the step's keys and values [P·N, H, d] at `position`."""
        self.keys.index_copy_(2, position, keys.unsqueeze(2))
        self.values.index_copy_(2, position, values.unsqueeze(2))

    def attend(self, queries: Tensor, bias: Tensor, scale: float) -> Tensor:
        """Each row's query over its prompt's prefix and its own tokens, under one softmax.

        Args:
            queries: [P·N, H, d].
            bias: fp32 [P, 1, 1, L + window], added to the scaled scores: 0 or −inf.
            scale: of the scores.

        Returns:
            [P·N, H·d].
        """
        (rows, heads, _), (prompts, _, prefix, _) = queries.shape, self.prefix_keys.shape
        window, by_prompt = bias.shape[-1] - prefix, (prompts, rows // prompts, heads)
        # [P, H, N, L]: the N rows of a prompt are N query rows, so the prefix is read once for all of them.
        shared = queries.unflatten(0, by_prompt[:2]).transpose(1, 2) @ self.prefix_keys.transpose(2, 3)
        own = (self.keys[:, :, :window] @ queries.unsqueeze(3)).view(*by_prompt, window).transpose(1, 2)
        # The softmax is in fp32, as in transformers; in bf16 the scores themselves are rounded.
        scores = torch.add(bias, torch.cat([shared, own], dim=3), alpha=scale)
        weights = scores.softmax(dim=3).to(self.values.dtype)
        shared = (weights[..., :prefix] @ self.prefix_values).transpose(1, 2).reshape(rows, -1)
        own = weights[..., prefix:].transpose(1, 2).reshape(rows, heads, 1, window) @ self.values[:, :, :window]
        return shared + own.view(rows, -1)

    def kept(self, prompts: Tensor, rows: Tensor, prefix: int) -> _Cache:
        """The cache of some prompts and rows, prefixes cut to `prefix` tokens."""
        return replace(
            self,
            prefix_keys=self.prefix_keys[:, :, :prefix].index_select(0, prompts),
            prefix_values=self.prefix_values[:, :, :prefix].index_select(0, prompts),
            keys=self.keys.index_select(0, rows),
            values=self.values.index_select(0, rows),
        )


def _positions(count: int, device: torch.device) -> Tensor:
    return torch.arange(count, device=device)


def _bias(visible: Tensor) -> Tensor:
    """fp32, 0 where visible and −inf elsewhere."""
    return torch.zeros(visible.shape, device=visible.device).masked_fill(~visible, -torch.inf)


def _head(policy: Policy) -> Callable[[Tensor], Tensor]:
    """The output layer as a plain weight, or the policy's own method where there is more to it."""
    head = policy.model.lm_head
    return _Linear.of(head) if type(policy).head is CausalPolicy.head and is_plain(head) else policy.head


def _autocast_of_now(device: str) -> Callable[[], AbstractContextManager[Any]]:
    """Opens the autocast (or its absence) that reigns now, so that steps compute alike wherever they are called.

    Without the cache of casted weights: they are cast already, and what a CUDA graph records must not live in it.
    """
    enabled, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    return lambda: torch.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=False)
