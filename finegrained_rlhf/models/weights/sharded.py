"""A model's matrices in shards over all processes, or over those of a group, by PyTorch's FSDP2.

With `processes.sharding=full` a layer's matrices are gathered for its forward and its backward pass and dropped behind
it; embeddings and head (`tables_of`), tied or not, for the first pass of a micro-batch, and dropped behind the backward
pass, since the head is read outside the model's own passes. With `gradients` the matrices of layers that are trained
are gathered in the first forward pass of an update and kept until it is made. Gradients are summed in fp32 at the
process that has the rows. Under bf16 autocast matrices of layers travel in bf16, in which autocast would use them, and
tables as they are. Norms, biases, adapters and tables of positions stay whole in every process, and have owners
(`runtime/sharding/exchange.py`): they are small.

Passes that need a gradient must be made by all processes alike, equally often. Passes without one need not: for them
`whole_weights` gathers a model once.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from transformers.modeling_layers import GradientCheckpointingLayer

from finegrained_rlhf.core.errors import ModelError
from finegrained_rlhf.models.lora import ADAPTER
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.runtime.sharding.shards import COMPUTED, KEPT, is_shard

T = TypeVar("T")
_OF_FSDP = ("_forward_pre_hooks", "_forward_hooks", COMPUTED)
_SHARDED = "_has_shards"


def shard_layers(model: nn.Module, processes: Processes) -> None:
    """Shard the matrices of all layers, embeddings and head, in place, and bring the model to the processes' device.

    With `processes.sharding=gradients` the layers' matrices that are trained; what shares nothing stays as it is.

    Args:
        model: a transformers model, on any device, the same in every process.
        processes: of the run; with a single one nothing is sharded.

    Raises:
        ModelError: its weights are to be shared out, and it has no layers that transformers knows as such.
    """
    full = processes.sharding == "full"
    if processes.count > 1 and processes.sharding != "none":
        # Nothing is written into what a pass returns; FSDP2 warns that it could be.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
        chosen = {layer: [p for p in matrices_of(layer) if full or p.requires_grad] for layer in sharded_layers(model)}
        if full and not chosen:
            raise ModelError(f"processes.sharding=full: {type(model).__name__} has no layers to shard")
        dtype = torch.bfloat16 if processes.precision == "bf16" else None
        settings: dict[str, Any] = {
            "mesh": processes.mesh,
            "mp_policy": MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False),
            "reshard_after_forward": full,
        }
        for layer, matrices in chosen.items():
            if matrices:
                _shard(layer, set(matrices), settings, kept=not full)
        if any(chosen.values()):
            as_they_are = MixedPrecisionPolicy(reduce_dtype=torch.float32, cast_forward_inputs=False)
            settings |= {"mp_policy": as_they_are, "reshard_after_forward": False}
            _shard(model, set(tables_of(model)) if full else set(), settings, kept=False)
            KEPT.add(model)  # no backward pass drops the reference's, nor those of a pass without gradients
    model.to(processes.device)


def _shard(layer: nn.Module, matrices: set[nn.Parameter], settings: Mapping[str, Any], kept: bool) -> None:
    """Shard these matrices of a layer; where they are `kept`, they stay gathered until an optimizer has moved them."""
    for part in layer.modules():
        if any(own in matrices for own in part.parameters(recurse=False)):
            setattr(part, _SHARDED, True)
    rest = {p for p in layer.parameters() if p not in matrices and not is_shard(p)}
    sharded = fully_shard(layer, **settings, ignored_params=rest)
    _prepare(sharded)
    if kept:
        sharded.set_reshard_after_backward(False)
        KEPT.add(sharded)


def is_sharded(module: nn.Module) -> bool:
    """Whether weights of this very module are in shards: whole only now and then, and not always in one place."""
    return getattr(module, _SHARDED, False)


def sharded_layers(model: nn.Module) -> list[nn.Module]:
    """The layers of encoder and decoder, each once."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def matrices_of(layer: nn.Module) -> list[nn.Parameter]:
    """What of a layer is sharded: all of two dimensions or more, but adapters and tables such as position biases."""
    return [
        own
        for name, part in layer.named_modules()
        if not isinstance(part, nn.Embedding) and ADAPTER not in f".{name}"
        for own in part.parameters(recurse=False)
        if own.ndim >= 2
    ]


def tables_of(model: Any) -> list[nn.Parameter]:
    """Embeddings and head of a transformers model, each once: all outside layers with a row for each token id."""
    inside = {own for layer in sharded_layers(model) for own in layer.parameters()}
    rows = model.get_input_embeddings().weight.shape[0]
    named = ((name, own) for name, own in model.named_parameters() if own not in inside and ADAPTER not in f".{name}")
    return [own for _, own in named if own.ndim >= 2 and own.shape[0] == rows]


def gather_tables(model: nn.Module) -> None:
    """Gather embeddings and head, where they are in shards, until an optimizer has moved what it trains.

    All processes must do so together.
    """
    if isinstance(model, FSDPModule):
        model.unshard()


@contextmanager
def whole_weights(model: nn.Module) -> Iterator[None]:
    """Gather all matrices of a sharded model for passes without gradients; all processes must do so together.

    Inside, the model is an ordinary one: processes may make different numbers of passes, and nothing is gathered or
    dropped in them. What is not sharded, or whole already, stays as it is.
    """
    parts = [part for part in model.modules() if isinstance(part, FSDPModule)]
    kept = [(type(part), {name: vars(part)[name] for name in _OF_FSDP}) for part in parts]
    try:
        for part in parts:
            part.unshard()
            part._forward_pre_hooks, part._forward_hooks = OrderedDict(), OrderedDict()
            delattr(part, COMPUTED)
            part.__class__ = type(part).__bases__[1]
        yield
    finally:
        for part, (own, state) in zip(parts, kept, strict=True):
            vars(part).update(state)
            part.__class__ = own
            part.reshard()


def _prepare(sharded: Any) -> None:
    """Sums instead of means of gradients, and a method for `computed`."""
    sharded.set_gradient_divide_factor(1.0)
    sharded.set_force_sum_reduction_for_comms(True)
    setattr(sharded, COMPUTED, _call)
    register_fsdp_forward_method(sharded, COMPUTED)


def _call(function: Callable[..., T], *arguments: Any) -> T:
    return function(*arguments)
