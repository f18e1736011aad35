"""A model as it is now, ready to be written while training goes on.

Knows state dictionaries and transformers' `save_pretrained`. Knows no policy and no file but what it is told to write.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from finegrained_rlhf.core.files import Write
from finegrained_rlhf.runtime.sharding.shards import is_shard, whole


def taken(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies on the CPU; tensors that share all of their memory do so in the copies too.

    Where some are in shards, every process must call this.
    """
    copies: dict[tuple[Any, ...], Tensor] = {}
    found = {}
    for name, tensor in state.items():
        if is_shard(tensor):
            found[name] = whole(tensor).cpu()
            continue
        place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype) if tensor.numel() else (name,)
        if place not in copies:
            copies[place] = tensor.detach().to("cpu", copy=True)
        found[name] = copies[place]
    return found


def pretrained_to_save(model: Any, state: Mapping[str, Tensor]) -> Write:
    """What writes a transformers model with this state in the Hugging Face layout; the model is not read again.

    Args:
        model: gives class, configuration and generation settings.
        state: on the CPU, under the names of a model without adapters.
    """
    with torch.device("meta"):
        shell: Any = type(model)(copy.deepcopy(model.config))
    shell.load_state_dict(dict(state), assign=True)
    shell.generation_config = copy.deepcopy(model.generation_config)
    return lambda directory: shell.save_pretrained(directory)


def module_to_save(module: nn.Module, file: str) -> Write:
    """What writes all weights of a module to one safetensors file, those that share memory once.

    Where some are in shards, every process must call this.
    """
    state: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in sorted(taken(module.state_dict()).items()):
        state.setdefault(tensor.data_ptr() if tensor.numel() else id(tensor), (name, tensor))
    once = {name: tensor.contiguous() for name, tensor in state.values()}
    return lambda directory: save_file(once, directory / file)
