"""Decoder-only policies one token at a time, the prompt's keys and values shared by its samples.

The layers are the model's own: `DecodingCopy` is the policy with the same modules and memory, and linear layers as
plain weights of now. Adapters are added into the weights, and where autocast reigns linear weights lie in its dtype, so
that a step casts nothing; what needs no change is shared with the policy. Where keys and values lie and how a row sees
its prompt is `shared_prefix.py`'s work. The prompts without their last token run once, P rows wide; the last token is
what every sample is fed at position 0. `FastEngine` owns the loop and the sampling (see `rollout/steppers/base.py`).
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.modeling_layers import GradientCheckpointingLayer

from finegrained_rlhf.core.errors import ModelError
from finegrained_rlhf.models.families.causal import CAUSAL_FAMILIES
from finegrained_rlhf.models.policy import CausalPolicy, Policy, PromptMemory
from finegrained_rlhf.rollout.steppers.base import Block
from finegrained_rlhf.rollout.steppers.fused_layers import FusedLayer, TurnedHalves, can_fuse
from finegrained_rlhf.rollout.steppers.shared_prefix import SHARED_PREFIX, Attend, SharedPrefixCache
from finegrained_rlhf.rollout.steppers.snapshot import (
    StackedWeights,
    WeightsOfNow,
    autocast_of_now,
    compute_dtype,
    effective_bias,
    effective_weight,
    is_plain,
    must_copy,
)

_HEAD_ROWS = 1024


class DecodingCopy:
    """Modules that compute what a policy computes without gradients, with `SHARED_PREFIX` for their attention.

    Args:
        source: whose model has plain linear layers in its backbone (see `is_plain`).

    Attributes:
        policy: the copy, in evaluation mode whatever the source's.
    """

    def __init__(self, source: Policy) -> None:
        config = copy.copy(source.model.config)
        config._attn_implementation = SHARED_PREFIX
        model = _copied(source.model, source.model.config, config)
        self._stacked = StackedWeights()
        fused = _fuse_layers(source.model, model, self._stacked)
        self._linear = _replace_linear(source.model, model, fused)
        _replace_embeddings(source.model, model, self._stacked)
        self.policy = copy.copy(source)
        self.policy.__dict__["_modules"] = {**self.policy._modules, "model": model}
        self.policy.training = False

    @property
    def backbone(self) -> Any:
        """The model without its head."""
        return self.policy.model.base_model

    @torch.no_grad()
    def refresh(self) -> None:
        """Read the source's weights again, into the same tensors."""
        self._stacked.refresh()
        for source, plain in self._linear:
            plain.read(source)


class _PlainLinear(nn.Linear):
    """x Wᵀ + b by tensors that are no parameters.

    Args:
        source: a layer that `is_plain`.
        in_pieces: multiply by so many rows of W at a time.
        copied: whether the weights are copied in any case.

    Attributes:
        is_product: says that nothing else happens (`models/families/heads.py`).
    """

    is_product = True

    def __init__(self, source: Any, in_pieces: int | None, copied: bool) -> None:
        nn.Module.__init__(self)
        weight, bias = effective_weight(source).detach(), effective_bias(source)
        dtype = compute_dtype(weight)
        if dtype != weight.dtype:  # a copy anyway, so lay it out for reading; otherwise share the module's memory
            weight = weight.to(dtype, memory_format=torch.contiguous_format)
        elif copied or hasattr(source, "base_layer"):  # adapters may be off now and on when it is read again
            weight = weight.clone()
        self.out_features, self.in_features = weight.shape
        self.register_buffer("weight", weight)
        self.register_buffer("bias", None if bias is None else bias.detach().to(dtype))
        self._rows = in_pieces

    def read(self, source: Any) -> None:
        """Take the source's weights of now."""
        weight, bias = effective_weight(source), effective_bias(source)
        if weight.data_ptr() != self.weight.data_ptr():
            self.weight.copy_(weight)
        if bias is not None and self.bias is not None:
            self.bias.copy_(bias)

    def forward(self, states: Tensor) -> Tensor:
        """As `nn.Linear`: [..., in] → [..., out]."""
        if self._rows is None:
            return F.linear(states, self.weight, self.bias)
        weights = self.weight.split(self._rows)
        biases = [None] * len(weights) if self.bias is None else self.bias.split(self._rows)
        pieces = [F.linear(states, weight, bias) for weight, bias in zip(weights, biases, strict=True)]
        return torch.cat(pieces, dim=-1)


def _copied(module: nn.Module, config: Any, ours: Any) -> Any:
    """The same tree of modules in evaluation mode, over the same parameters and buffers, `ours` for `config`."""
    copied = copy.copy(module)
    state = vars(copied)
    state["training"] = False
    state["_modules"] = {name: child and _copied(child, config, ours) for name, child in module._modules.items()}
    if state.get("config") is config:
        state["config"] = ours
    return copied


@torch.no_grad()
def _fuse_layers(source: Any, copied: Any, weights: StackedWeights) -> list[str]:
    """Put fused layers where all layers can be, with their rotary positions; the beginnings of replaced names."""
    names = {name: part for name, part in source.named_modules() if isinstance(part, GradientCheckpointingLayer)}
    if not names or not all(can_fuse(layer, source.config) for layer in names.values()):
        return []
    for name, layer in names.items():
        parent, _, child = name.rpartition(".")
        setattr(copied.get_submodule(parent), child, FusedLayer(layer, weights))
    copied.base_model.rotary_emb = TurnedHalves(source.base_model.rotary_emb)
    return [f"{name}." for name in names]


def _replace_linear(source: Any, copied: Any, without: list[str]) -> list[tuple[Any, _PlainLinear]]:
    """Put plain weights for adapters, other dtypes, transposed weights and the head; pairs (source's, copy's)."""
    replaced: list[tuple[Any, _PlainLinear]] = []
    inside = list(without)  # names of replaced layers: what an adapter consists of needs no look
    for name, module in source.named_modules():
        if any(name.startswith(prefix) for prefix in inside) or not is_plain(module):
            continue
        weight = getattr(module, "base_layer", module).weight
        # Few rows against a large vocabulary: on a CPU, products that fit its cache take three quarters of the time.
        pieces = _HEAD_ROWS if module is source.get_output_embeddings() and not weight.is_cuda else None
        kept = type(module) is nn.Linear and compute_dtype(weight) == weight.dtype and not must_copy(module)
        if not kept or pieces is not None:
            plain = _PlainLinear(module, pieces, must_copy(module))
            parent, _, child = name.rpartition(".")
            setattr(copied.get_submodule(parent), child, plain)
            replaced.append((module, plain))
            inside.append(f"{name}.")
    return replaced


def _replace_embeddings(source: Any, copied: Any, weights: StackedWeights) -> None:
    """Put embeddings over a copy of those that are in shards."""
    embedding = source.get_input_embeddings()
    name = next(name for name, module in source.named_modules() if module is embedding)
    parent, _, child = name.rpartition(".")
    setattr(copied.get_submodule(parent), child, weights.table(embedding))


decoding_copy = WeightsOfNow(DecodingCopy)


_FIXED_ROTARY = {"default", "linear", "llama3", "yarn"}  # others change all positions with the longest row


def supports_causal(policy: Policy) -> bool:
    """True when `open_causal` computes what the policy's own modules would.

    Hooks inside the backbone (also those that transformers leaves behind after a call with
    `output_hidden_states=True`), replaced `forward` methods, cross-attention, attention that looks ahead, rotary
    positions that depend on the longest row of a batch, and adapters other than plain LoRA on linear layers are not
    followed. Anything on the head is: the policy's own method is called. Dropout is off, whatever the modules' mode.
    """
    model = policy.model
    if not isinstance(policy, CausalPolicy) or not type(model).__module__.startswith("transformers.models."):
        return False
    config = model.config
    family = CAUSAL_FAMILIES.get(config.model_type)
    if family is None or not family.stepped or not looks_back_only(config) or not rotates_rows_alike(config):
        return False
    modules = list(model.base_model.modules())
    if any(m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m) for m in modules):
        return False
    adapted = [module for module in modules if hasattr(module, "base_layer")]
    return all(is_plain(module) for module in adapted)


def looks_back_only(config: Any) -> bool:
    """No cross-attention, no attention to later tokens, and none that the attention function does not see."""
    bidirectional = getattr(config, "use_bidirectional_attention", None) or not getattr(config, "is_causal", True)
    hidden = getattr(config, "add_cross_attention", False) or getattr(config, "reorder_and_upcast_attn", False)
    return not (bidirectional or hidden)


def rotates_rows_alike(config: Any) -> bool:
    """Whether a token's rotary angle follows from its position alone, not from the longest row of a batch."""
    return _rotary(config) <= _FIXED_ROTARY


def _rotary(config: Any) -> set[str]:
    """Kinds of rotary positions; there may be one for each kind of layer, or none."""
    settings = getattr(config, "rope_parameters", None) or {}
    kinds = [settings] if "rope_type" in settings else [one for one in settings.values() if isinstance(one, dict)]
    return {kind["rope_type"] for kind in kinds}


def open_causal(policy: Policy, memory: PromptMemory, samples: int, max_new_tokens: int) -> CausalStepper:
    """Run the prompts once and start a stepper at position 0; an `OpenStepper`.

    Raises:
        ModelError: not a policy that `supports_causal` knows, or a prompt and its longest response together have more
            tokens than the model has positions.
    """
    if not supports_causal(policy):
        raise ModelError(f"the decoder-only stepper does not serve this {type(policy.model).__name__}")
    return CausalStepper(policy, memory, samples, max_new_tokens)


def _check_positions(positions: int | None, memory: PromptMemory, max_new_tokens: int) -> None:
    longest = memory.longest
    if positions is not None and longest + max_new_tokens > positions:
        raise ModelError(
            f"the longest prompt has {longest} tokens and a response may have {max_new_tokens}, together "
            f"{longest + max_new_tokens}, but the model has {positions} positions (max_position_embeddings): shorten "
            "one of them"
        )


class CausalStepper:
    """See `ReloadableStepper` and `BlockStepper`.

    A row's cache holds the last prompt token and all response tokens but the last.

    Args:
        policy: one that `supports_causal`.
        memory: P prompts.
        samples: N rows a prompt.
        max_new_tokens: longest response in tokens.
    """

    @torch.no_grad()
    def __init__(self, policy: Policy, memory: PromptMemory, samples: int, max_new_tokens: int) -> None:
        self._positions: int | None = getattr(policy.model.config, "max_position_embeddings", None)
        _check_positions(self._positions, memory, max_new_tokens)
        self._autocast = autocast_of_now(policy.device.type)
        self._copy = decoding_copy(policy)
        lengths = memory.prompt_mask.sum(dim=1) - 1
        # Padding may exceed the positions. The last column is seen by nobody: on a GPU it keeps the width even, since
        # products of rows that are not aligned take several times as long; prompts of one token have no other.
        columns = min(memory.prompt_ids.shape[1], self._positions or memory.prompt_ids.shape[1])
        width = columns if policy.device.type == "cuda" else max(columns - 1, 1)
        self._cache = SharedPrefixCache(lengths, width, samples, max_new_tokens)
        self.first_tokens = _last(memory, lengths).repeat_interleave(samples)
        self._offsets = lengths.repeat_interleave(samples)
        self._prefill(memory)

    @property
    def kept_bytes(self) -> int:
        """See `ReloadableStepper.kept_bytes`."""
        return sum(tensor.nbytes for layer in self._cache.layers.values() for tensor in vars(layer).values())

    @torch.no_grad()
    def reload(self, memory: PromptMemory) -> None:
        """See `ReloadableStepper.reload`. What lies in the rows' caches is masked until it is written again."""
        _check_positions(self._positions, memory, self._cache.limit)
        self._copy.refresh()
        lengths = memory.prompt_mask.sum(dim=1) - 1
        self._cache.lengths.copy_(lengths)
        self.first_tokens.copy_(_last(memory, lengths).repeat_interleave(self._cache.samples))
        self._offsets.copy_(lengths.repeat_interleave(self._cache.samples))
        self._prefill(memory)

    @torch.no_grad()
    def logits(self, tokens: Tensor, position: Tensor, window: int) -> Tensor:
        """See `Stepper.logits`: tokens int64 [P·N] at position int64 [1] → float [P·N, V]."""
        with self._autocast():
            places = (self._offsets + position).unsqueeze(1)
            hidden = self._run(tokens.unsqueeze(1), places, self._cache.step(position, window))
            return self._copy.policy.head(hidden.squeeze(1))

    @torch.no_grad()
    def block(self, tokens: Tensor, block: Block) -> Tensor:
        """See `BlockStepper.block`: tokens int64 [M] → float [M, V]; the model reads them as one row of M."""
        with self._autocast():
            places = (self._offsets[block.rows] + block.places).unsqueeze(0)
            hidden = self._run(tokens.unsqueeze(0), places, self._cache.block(block))
            return self._copy.policy.head(hidden.squeeze(0))

    @torch.no_grad()
    def keep(self, prompts: Tensor, rows: Tensor) -> None:
        """See `Stepper.keep`: prompts int64 [P'] and rows int64 [P'·N'] that stay."""
        self.first_tokens, self._offsets = self.first_tokens[rows], self._offsets[rows]
        self._cache.keep(prompts, rows)

    def _prefill(self, memory: PromptMemory) -> None:
        ids = memory.prompt_ids[:, : self._cache.width]
        places = torch.arange(ids.shape[1], device=ids.device).unsqueeze(0)
        with self._autocast():
            self._run(ids, places, self._cache.prefill)

    def _run(self, ids: Tensor, places: Tensor, attend: Attend) -> Tensor:
        """States [B, T, D] of ids [B, T] at positions [B or 1, T]."""
        backbone = self._copy.backbone
        embedded = backbone.get_input_embeddings()(ids)
        output = backbone(inputs_embeds=embedded, position_ids=places, use_cache=False, attend=attend)
        return output.last_hidden_state


def _last(memory: PromptMemory, lengths: Tensor) -> Tensor:
    """The last token of each prompt, int64 [P], whose prefix has `lengths` [P] tokens."""
    return memory.prompt_ids.gather(1, lengths.unsqueeze(1)).squeeze(1)
