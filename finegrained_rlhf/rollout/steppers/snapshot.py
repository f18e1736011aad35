"""Plain weights of linear layers as they are now, for decoders that do not go through the modules.

Handles torch's `Linear`, transformers' `Conv1D` and peft's LoRA layers (by their attributes; peft is not imported).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.models.weights.sharded import is_sharded


def compute_dtype(weight: Tensor) -> torch.dtype:
    """The dtype in which a linear layer with this weight [out, in] computes now: autocast's, or the weight's own."""
    if torch.is_autocast_enabled(weight.device.type):
        return torch.get_autocast_dtype(weight.device.type)
    return weight.dtype


def shares_weights(policy: Policy) -> bool:
    """Whether all steppers of a policy read one copy of its weights: on CUDA, where recorded steps stay alive."""
    return policy.device.type == "cuda"


def must_copy(module: Any) -> bool:
    """Whether steppers need copies of a linear layer's weights: those in shards are whole during a rollout only."""
    return is_sharded(getattr(module, "base_layer", module))


def is_plain(module: Any) -> bool:
    """True when `effective_weight` says all that the module does: no hook, and no adapter beyond plain LoRA."""
    if module._forward_hooks or module._forward_pre_hooks:
        return False
    if not hasattr(module, "base_layer"):
        return type(module).__name__ in ("Linear", "NonDynamicallyQuantizableLinear", "Conv1D")
    variants = getattr(module, "lora_variant", {})
    return hasattr(module, "get_delta_weight") and not variants and is_plain(module.base_layer)


@torch.no_grad()
def effective_weight(module: Any) -> Tensor:
    """Weight [out, in] of a linear layer with its active LoRA adapters added in: W + Σ (alpha / r) · B A.

    May share memory with the module's own weight.
    """
    base = getattr(module, "base_layer", module)
    weight: Tensor = base.weight
    if base is not module and not module.disable_adapters and not module.merged:
        for name in module.active_adapters:
            if name in module.lora_A:
                weight = weight + module.get_delta_weight(name)  # in fp32, also where a frozen base is stored in bf16
    return weight.t() if type(base).__name__ == "Conv1D" else weight


def effective_bias(module: Any) -> Tensor | None:
    """Bias [out] of a linear layer, or None."""
    bias: Tensor | None = getattr(module, "base_layer", module).bias
    return bias


def autocast_of_now(device: str) -> Callable[[], AbstractContextManager[Any]]:
    """Opens the autocast (or its absence) that reigns now, so that steps compute alike wherever they are called.

    Without the cache of casted weights: they are cast already, and what a CUDA graph records must not live in it.
    """
    enabled, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    return lambda: torch.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=False)


class StackedWeights:
    """Weights of linear layers as they were read, those that read one input below each other."""

    def __init__(self) -> None:
        self._copies: list[tuple[tuple[Any, ...], Tensor, Callable[[Any], Tensor]]] = []

    @torch.no_grad()
    def refresh(self) -> None:
        """Read the weights again, into the same tensors; those that are shared follow by themselves."""
        for modules, tensor, read in self._copies:
            start = 0
            for module in modules:
                rows = read(module)
                tensor[start : start + rows.shape[0]].copy_(rows)
                start += rows.shape[0]

    def weight(self, *modules: Any) -> Tensor:
        """Weights [ΣO, I] in the dtype that they compute in now; a copy, or the one module's own memory."""
        weights = [effective_weight(module).detach() for module in modules]
        dtype = compute_dtype(weights[0])
        plain = len(modules) == 1 and not hasattr(modules[0], "base_layer")
        if plain and weights[0].dtype == dtype and not must_copy(modules[0]):
            return weights[0]
        return self._copy(modules, effective_weight, dtype)

    def bias(self, *modules: Any) -> Tensor | None:
        """Biases [ΣO], likewise; None where the first module has none."""
        first = effective_bias(modules[0])
        return None if first is None else self._copy(modules, effective_bias, compute_dtype(first))

    def table(self, embedding: Any) -> Any:
        """An embedding of V rows; over a copy of its weight [V, D] where that is in shards."""
        if not is_sharded(embedding):
            return embedding
        dtype, copied = embedding.weight.dtype, copy.copy(embedding)
        weight = self._copy((embedding,), lambda module: module.weight, dtype)
        copied._parameters = {"weight": nn.Parameter(weight, requires_grad=False)}
        return copied

    def _copy(self, modules: tuple[Any, ...], read: Callable[[Any], Any], dtype: torch.dtype) -> Tensor:
        made = torch.cat([read(module).detach().to(dtype) for module in modules])
        self._copies.append((modules, made, read))
        return made


class RefreshedWeights(Protocol):
    """Weights of a policy as they were read."""

    def refresh(self) -> None:
        """Read them again, into the same tensors."""


R = TypeVar("R", bound=RefreshedWeights)


class WeightsOfNow(Generic[R]):
    """Gives a policy's weights of now.

    Where `shares_weights` there is one reading for a policy and a dtype, which all recorded steps share; elsewhere each
    is new and lives as long as its stepper.

    Args:
        read: makes a reading.
    """

    def __init__(self, read: Callable[[Policy], R]) -> None:
        self._read = read
        self._kept: WeakKeyDictionary[Policy, dict[torch.dtype, R]] = WeakKeyDictionary()

    def __call__(self, policy: Policy) -> R:
        """The reading, made now or refreshed now."""
        if not shares_weights(policy):
            return self._read(policy)
        kept, dtype = self._kept.setdefault(policy, {}), compute_dtype(next(policy.model.parameters()))
        if dtype in kept:
            kept[dtype].refresh()
        else:
            kept[dtype] = self._read(policy)
        return kept[dtype]
