"""The same layers in fewer operations: norms in one kernel, and linear layers without a cast of their weights.

A GPU computes most operations of a layer faster than a host can start them. `fuse` lets a model run

- RMS norms by torch's own function, which on CUDA is one kernel each way;
- under bf16 autocast, linear layers without bias by bf16 copies of their fp32 weights, which are made anew once the
  weights have changed, instead of a cast of each weight in every pass. What comes out is the same; gradients of
  weights are sums in fp32, where autocast's were rounded to bf16, and so are those of an fp32 input. T5's passes ask
  for all layers that read one input at once (`products`): they are one product.

In fp32 a fused model computes what it did up to the order of products in a norm.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from finegrained_rlhf.models.families.heads import bf16_product, in_bf16, is_product
from finegrained_rlhf.runtime.sharding.shards import is_shard

_NORM_TOLERANCE = 1e-5
"""By how much a fused norm may differ from the module's own, relative to its largest output."""


def fuse(model: nn.Module) -> None:
    """Let a model run fused from now on, in place; what has no fused form stays as it is.

    Args:
        model: with weights in fp32 where they are to be fused. Those in shards are not.
    """
    copies = RoundedWeights()
    for module in model.modules():
        _fuse_norm(module)
        if type(module) is nn.Linear and module.bias is None and not is_shard(module.weight):
            module.__class__ = FusedLinear
            module._copies = copies


def is_fused(model: nn.Module) -> bool:
    """Whether `fuse` has changed anything in a model."""
    return any(isinstance(module, (FusedNorm, FusedLinear)) for module in model.modules())


def drop_copies(*models: nn.Module | None) -> None:
    """Give back the memory of fused models' copies of weights until the next pass, which makes them again."""
    for copies in {
        part._copies for model in models if model for part in model.modules() if isinstance(part, FusedLinear)
    }:
        copies.drop()


@contextmanager
def unfused(model: nn.Module) -> Iterator[None]:
    """Let a model's own modules run as they were before `fuse` and `compile_blocks`."""
    changed = [(part, type(part)) for part in model.modules() if isinstance(part, Swapped)]
    for part, own in changed:
        part.__class__ = own.__bases__[-1]
    try:
        yield
    finally:
        for part, own in changed:
            part.__class__ = own


class Swapped(nn.Module):
    """A module whose class stands for the one that it had, which is the last of its bases."""


class FusedLinear(Swapped, nn.Linear):
    """x Wᵀ; under bf16 autocast by a copy of W.

    Attributes:
        is_product: says that nothing else happens (`models/families/heads.py`).
        rounded: what compiled passes multiply by: the copy, where `round_weights` has made it.
    """

    is_product = True
    rounded: Tensor | None = None
    _copies: RoundedWeights

    def forward(self, states: Tensor) -> Tensor:
        """As `nn.Linear`: [..., I] → [..., O]."""
        return _product(states, [self]) if _takes_copies(states, [self]) else super().forward(states)


FusedLinear.__name__ = nn.Linear.__name__  # adapters and snapshots know layers by the names of their classes


def round_weights(block: nn.Module) -> None:
    """Make anew what compiled passes through a block multiply by: copies of weights that have changed."""
    for layer in block.modules():
        if isinstance(layer, FusedLinear) and in_bf16(layer.weight.device.type):
            layer.rounded = layer._copies.of([layer])


def products(states: Tensor, *layers: nn.Module) -> Sequence[Tensor]:
    """What linear layers make of the same states [..., I]: [..., O] of each, in order.

    One product where all take copies of their weights; otherwise each layer is called.
    """
    if len(layers) == 1 or not _takes_copies(states, layers):
        return [layer(states) for layer in layers]
    return _product(states, layers).split([len(layer.weight) for layer in layers], dim=-1)  # type: ignore[arg-type]


def _takes_copies(states: Tensor, layers: Sequence[Any]) -> bool:
    return in_bf16(states.device.type) and all(
        isinstance(one, FusedLinear) and is_product(one) and one.weight.dtype == torch.float32 for one in layers
    )


def _product(states: Tensor, layers: Sequence[Any]) -> Tensor:
    weights = [layer.weight for layer in layers]
    if torch.compiler.is_compiling():  # `round_weights` came before
        rounded = torch.cat([layer.rounded for layer in layers]) if len(layers) > 1 else layers[0].rounded
        if not torch.is_grad_enabled():
            return F.linear(states.bfloat16(), rounded)
    else:
        rounded = layers[0]._copies.of(layers)
    product: Tensor = _Product.apply(states, rounded, *weights)  # type: ignore[no-untyped-call]
    return product


class _Product(torch.autograd.Function):
    """x Wᵀ in bf16 by a rounded W [ΣO, I], whose rows are those of several weights; gradients as this module says."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, rounded: Tensor, *weights: Tensor) -> Tensor:
        factor = states.bfloat16()
        ctx.save_for_backward(factor, rounded)
        ctx.dtype, ctx.rows = states.dtype, [len(weight) for weight in weights]
        return F.linear(factor, rounded)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        factor, rounded = ctx.saved_tensors
        flat = gradient.flatten(0, -2)
        of_states, of_weights = None, [None] * len(ctx.rows)
        if ctx.needs_input_grad[0]:
            multiply = bf16_product if ctx.dtype == torch.float32 else torch.mm
            of_states = multiply(flat, rounded).unflatten(0, gradient.shape[:-1])
        if any(ctx.needs_input_grad[2:]):
            of_weights = bf16_product(flat.t(), factor.flatten(0, -2)).split(ctx.rows)
        return of_states, None, *of_weights


class _Copy:
    """Weights below each other in bf16, and of which state of theirs; None before they are read and once dropped."""

    def __init__(self, layers: Sequence[Any]) -> None:
        self.layers = list(layers)
        self.tensor: Tensor | None = None
        self._read: list[tuple[int, int]] = []

    def _state(self) -> list[tuple[int, int]]:
        return [(layer.weight.data_ptr(), layer.weight._version) for layer in self.layers]

    @property
    def is_stale(self) -> bool:
        """Whether a weight has changed, or lies elsewhere, since it was read."""
        return self.tensor is None or self._read != self._state()

    def read(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows of the copy, each with the weight that belongs there."""
        weights = [layer.weight.detach() for layer in self.layers]
        rows = [len(weight) for weight in weights]
        if self.tensor is None or self.tensor.device != weights[0].device:
            self.tensor = weights[0].new_empty(sum(rows), weights[0].shape[1], dtype=torch.bfloat16)
        self._read = self._state()
        return zip(self.tensor.split(rows), weights, strict=True)


class RoundedWeights:
    """bf16 copies of a model's weights.

    That a weight has changed is found out when its copy is asked for (`Tensor._version`); then all are read anew, into
    the same memory, unless they have been dropped.
    """

    def __init__(self) -> None:
        self._copies: dict[tuple[nn.Module, ...], _Copy] = {}

    @torch.no_grad()
    def of(self, layers: Sequence[nn.Module]) -> Tensor:
        """The copies [ΣO, I] of the weights [O, I] of linear layers, below each other."""
        together = tuple(layers)  # transformers' own passes ask for one layer where ours ask for several
        copy = self._copies.get(together)
        if copy is None:
            copy = self._copies[together] = _Copy(together)
        if copy.is_stale:
            pairs = [pair for kept in self._copies.values() if kept.is_stale for pair in kept.read()]
            torch._foreach_copy_([rows for rows, _ in pairs], [weight for _, weight in pairs])
        assert copy.tensor is not None
        return copy.tensor

    def drop(self) -> None:
        """Give their memory back until one is asked for."""
        for layers, copy in self._copies.items():
            copy.tensor = None
            layers[0].rounded = None  # type: ignore[assignment]


@cache
def sums_in_product(device: torch.device) -> bool:
    """Whether torch adds a product of bf16 matrices to an fp32 one in one kernel here; tried once, on small ones."""
    factor, total = torch.ones(16, 16, dtype=torch.bfloat16, device=device), torch.ones(16, 16, device=device)
    try:
        torch.addmm(total, factor, factor, out_dtype=torch.float32, out=total)
    except (RuntimeError, TypeError):
        return False
    return bool((total == 17).all())


def add_product(hidden: Tensor, states: Tensor, weight: Tensor, in_place: bool) -> Tensor:
    """Hidden + states Wᵀ, without gradient.

    Args:
        hidden: float [n, O].
        states: float [n, I].
        weight: W [O, I], of the dtype of `states`.
        in_place: add the product of bf16 factors, which is not rounded before, to fp32 `hidden` itself, in one kernel;
            for devices where `sums_in_product`.
    """
    if in_place and hidden.dtype == torch.float32 and states.dtype == torch.bfloat16:
        return torch.addmm(hidden, states, weight.t(), out_dtype=torch.float32, out=hidden)
    return hidden + F.linear(states, weight)


class FusedNorm(Swapped):
    """An RMS norm over the last dimension by `torch.nn.functional.rms_norm`; subclasses are a family's norm too."""

    _shift: float
    _epsilon: float
    _as_input: bool

    def forward(self, states: Tensor) -> Tensor:
        """As the module's own: [..., D] → [..., D]."""
        weight: Tensor = self.weight  # type: ignore[assignment]
        if weight.dtype != torch.float32:
            own: Tensor = super().forward(states)
            return own
        weight = weight + self._shift if self._shift else weight
        normed = F.rms_norm(states.float(), weight.shape, weight, self._epsilon)
        return normed.to(states.dtype) if self._as_input else normed


@cache
def _fused_norm(plain: Any) -> type[FusedNorm]:
    return type(plain.__name__, (FusedNorm, plain), {"__module__": plain.__module__})


@torch.no_grad()
def _fuse_norm(module: Any) -> None:
    """Swap the class of an RMS norm for its fused one, if that computes the same on a row of random numbers."""
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    own = dict(module.named_parameters())
    if "Norm" not in type(module).__name__ or isinstance(module, FusedNorm) or list(own) != ["weight"]:
        return
    weight = own["weight"]
    if not isinstance(epsilon, float) or weight.ndim != 1 or weight.dtype != torch.float32 or not _is_alone(module):
        return
    with torch.autocast(weight.device.type, enabled=False):
        row = torch.randn(1, len(weight), generator=torch.Generator().manual_seed(0)).to(weight.device)
        expected, half = module(row), module(row.bfloat16()).dtype == torch.bfloat16
        for shift in (0.0, 1.0):  # Gemma multiplies by 1 + weight
            fused = F.rms_norm(row, weight.shape, weight + shift, epsilon)
            if bool((fused - expected).abs().max() <= _NORM_TOLERANCE * expected.abs().max()):
                plain: Any = type(module)
                module._shift, module._epsilon, module._as_input = shift, epsilon, half
                module.__class__ = _fused_norm(plain)
                return


def _is_alone(module: nn.Module) -> bool:
    """Whether nothing but a module's class says what it computes: no hooks and no `forward` of its own."""
    return not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))
