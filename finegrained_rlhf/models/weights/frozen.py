"""Frozen weights in bf16: half the memory, and under bf16 autocast the same numbers.

Autocast casts weight and bias of a linear layer to bf16 at every use. Where they are never trained, that can be done
once. What autocast leaves in fp32 (embeddings, norms, position biases, heads tied to embeddings) stays as it is.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING

from finegrained_rlhf.models.lora import ADAPTER
from finegrained_rlhf.models.policy import Policy

if TYPE_CHECKING:
    from torch import nn

_LINEAR = ("Linear", "NonDynamicallyQuantizableLinear", "Conv1D")


def linear_parameters(module: nn.Module) -> Iterator[nn.Parameter]:
    """Weights and biases of linear layers, of any shape, each once: no adapters, none that an embedding shares."""
    layers = [(name, part) for name, part in module.named_modules() if ADAPTER not in name]
    linear = [part for _, part in layers if type(part).__name__ in _LINEAR]
    ours = {id(part) for part in linear}
    elsewhere = {id(own) for _, part in layers if id(part) not in ours for own in part.parameters(recurse=False)}
    parameters = {id(own): own for part in linear for own in part.parameters(recurse=False) if id(own) not in elsewhere}
    yield from parameters.values()


def store_frozen(module: nn.Module) -> None:
    """Store the weights of the linear layers that are not trained in bf16, in place."""
    import torch

    for parameter in linear_parameters(module):
        if not parameter.requires_grad:
            parameter.data = parameter.data.to(torch.bfloat16)


def frozen_copy(policy: Policy) -> Policy:
    """The policy as it is now, with weights of its own that nothing trains; stored as the policy says."""
    frozen: Policy = copy.deepcopy(policy).requires_grad_(False)
    if policy.frozen_in_bf16:
        store_frozen(frozen)
    return frozen
