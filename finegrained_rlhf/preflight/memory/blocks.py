"""Which parameters of a model lie in matrices of its transformer blocks.

Knows modules only, on any device.
"""

from __future__ import annotations

from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from finegrained_rlhf.models.lora import ADAPTER
from finegrained_rlhf.models.weights.frozen import linear_parameters
from finegrained_rlhf.preflight.memory.plan import Blocks


def transformer_blocks(module: nn.Module) -> list[nn.Module]:
    """The layers of encoder and decoder, each once."""
    return [part for part in module.modules() if isinstance(part, GradientCheckpointingLayer)]


def block_matrices(block: nn.Module) -> list[nn.Parameter]:
    """Parameters of two dimensions or more, of any shape, but tables (position biases) and LoRA adapters."""
    return [
        own
        for name, part in block.named_modules()
        if not isinstance(part, nn.Embedding) and ADAPTER not in f".{name}"
        for own in part.parameters(recurse=False)
        if own.dim() > 1
    ]


def blocks_of(module: nn.Module) -> Blocks:
    """What lies in the matrices of a model's blocks."""
    blocks = [block_matrices(block) for block in transformer_blocks(module)]
    matrices = [parameter for block in blocks for parameter in block]
    linear = {id(parameter) for parameter in linear_parameters(module)}
    return Blocks(
        matrices=sum(parameter.numel() for parameter in matrices),
        trained=sum(parameter.numel() for parameter in matrices if parameter.requires_grad),
        linear=sum(parameter.numel() for parameter in matrices if id(parameter) in linear),
        largest=max((sum(parameter.numel() for parameter in block) for block in blocks), default=0),
    )


def largest_trained(module: nn.Module, outside_blocks: bool = False) -> int:
    """Numbers in the largest trained tensor of a model, or in the largest that is no matrix of a block."""
    split = {id(own) for block in transformer_blocks(module) for own in block_matrices(block)} if outside_blocks else ()
    return max((own.numel() for own in module.parameters() if own.requires_grad and id(own) not in split), default=0)
