"""The same layers compiled by torch, one block at a time.

`compile_blocks` lets the blocks of a model run through `torch.compile` wherever they neither keep keys and values nor
draw dropout: in scoring and in the update. All blocks of a kind share one graph for all lengths, since what differs
between them are its inputs; with gradients and without are two. Compiled code stays in torch's cache on the disk
(`TORCHINDUCTOR_CACHE_DIR`), where later runs find it.

A block in fp32 computes what it did up to the order of sums. Under bf16 autocast its norms, activations and sums are
rounded once where they leave a kernel, instead of after each operation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask
from transformers.modeling_layers import GradientCheckpointingLayer

from finegrained_rlhf.models.families.attention import RECOMPILE_LIMIT
from finegrained_rlhf.models.families.fused import Swapped, round_weights

T = TypeVar("T")

BACKEND = "inductor"
"""What compiles, as `torch.compile` names it."""


def compile_blocks(model: nn.Module) -> None:
    """Let a model's blocks run compiled from now on, in place; nothing is compiled before a pass asks for it."""
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer) and not isinstance(module, CompiledBlock):
            plain: Any = type(module)
            module.__class__ = _compiled_class(plain)


class CompiledBlock(Swapped):
    """A block that is compiled where it is given data alone, and no dropout; subclasses are a family's block too.

    Decoding gives it more: a cache, or what attends in its place (`rollout/steppers/causal.py`).
    """

    _own: Callable[..., Any]

    def forward(self, *arguments: Any, **options: Any) -> Any:
        """As the block's own."""
        own = type(self)._own
        if _is_data((*arguments, *options.values())):
            own = of_block(self, own)
        return own(self, *arguments, **options)


def _is_data(given: Any) -> bool:
    if isinstance(given, (tuple, list)):
        return all(map(_is_data, given))
    return given is None or isinstance(given, (Tensor, BlockMask, bool, int, float, str))


def of_block(block: nn.Module, function: Callable[..., T]) -> Callable[..., T]:
    """A function that computes a block, compiled where passes through it are: without dropout.

    That is told by the block's parts, since gradient checkpointing sets the block's own flag (`Policy._recomputing`).
    """
    if not isinstance(block, CompiledBlock) or any(part.training for part in block.children()):
        return function
    round_weights(block)
    return compiled(function)


@cache
def _compiled_class(plain: Any) -> Any:
    return type(plain.__name__, (CompiledBlock, plain), {"__module__": plain.__module__, "_own": plain.forward})


@cache
def compiled(function: Callable[..., T]) -> Callable[..., T]:
    """A function compiled for tensors of any length, with a limit of graphs of its own (`families/attention.py`)."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, RECOMPILE_LIMIT)
    return torch.compile(_copy(function), dynamic=True, backend=BACKEND)


def _copy(function: Any) -> FunctionType:
    """A function of its own code object, by which torch counts and finds what it has compiled."""
    copied = FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied
