"""Which parameters of a model lie in matrices of its transformer blocks."""

from __future__ import annotations

from torch import nn

from finegrained_rlhf.models.weights.frozen import linear_parameters
from finegrained_rlhf.models.weights.sharded import matrices_of, sharded_layers
from finegrained_rlhf.preflight.memory.plan import Blocks


def blocks_of(module: nn.Module) -> Blocks:
    """What lies in the matrices of a model's blocks."""
    blocks = [matrices_of(block) for block in sharded_layers(module)]
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
    split = {id(own) for block in sharded_layers(module) for own in matrices_of(block)} if outside_blocks else ()
    return max((own.numel() for own in module.parameters() if own.requires_grad and id(own) not in split), default=0)
