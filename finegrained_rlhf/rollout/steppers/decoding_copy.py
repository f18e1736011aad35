"""A causal policy as it is decoded with: the same modules and memory, linear layers as plain weights of now.

Adapters are added into the weights, and where autocast reigns linear weights lie in its dtype, so that a step casts
nothing. Everything else (embeddings, norms, buffers) is shared with the policy; where a linear layer's weights need no
change, they are shared too.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.rollout.steppers.shared_prefix import SHARED_PREFIX
from finegrained_rlhf.rollout.steppers.snapshot import (
    WeightsOfNow,
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
        self._linear = _replace_linear(source.model, model)
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


def _replace_linear(source: Any, copied: Any) -> list[tuple[Any, _PlainLinear]]:
    """Put plain weights for adapters, other dtypes, transposed weights and the head; pairs (source's, copy's)."""
    replaced: list[tuple[Any, _PlainLinear]] = []
    inside: list[str] = []  # names of replaced layers: what an adapter consists of needs no look
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


decoding_copy = WeightsOfNow(DecodingCopy)
