"""Policies and other models in the ordinary Hugging Face layout, taken as they are now and written when it suits.

What was taken is not read again, so that it can be written while training goes on. Knows state dictionaries, adapters
and transformers' `save_pretrained`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from finegrained_rlhf.core.files import Write, write_all
from finegrained_rlhf.models.lora import adapter_weights, merged_state
from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.models.weights.sharded import is_sharded
from finegrained_rlhf.runtime.sharding.shards import is_shard, whole
from finegrained_rlhf.text.chat import record_prompt


def save_policy(policy: Policy, directory: Path) -> None:
    """Save weights (adapters merged in), configuration and tokenizer so that `from_pretrained` opens them.

    A LoRA policy's adapter is saved beside, in `adapter/`; how prompts are put, where that is not the default.
    """
    policy_to_save(policy)(directory)


def policy_to_save(policy: Policy, main: bool = True) -> Write:
    """The same of the policy as it is now, to be written while it is trained further.

    Args:
        policy: as it is now; where it is in shards, every process must call this.
        main: whether this process writes; the others write nothing.
    """
    adapter = policy.adapter
    if not main and not is_sharded(policy.model):
        return write_all(())
    state = taken(policy.model.state_dict() if adapter is None else merged_state(policy.model))
    if not main:
        return write_all(())
    model = pretrained_to_save(policy.model, state)
    inside = {f"base_model.model.{name}": tensor for name, tensor in taken(adapter_weights(policy.model)).items()}

    def write(directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        model(directory)
        if adapter is not None:
            adapter.save_pretrained(directory / "adapter", selected_adapters=["default"], state_dict=inside)
        policy.tokenizer.save_pretrained(directory)
        record_prompt(directory, policy.prompt)

    return write


def taken(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of tensors of any shape on the CPU; those that share all of their memory do so in the copies too.

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
        state: on the CPU, of the shapes and under the names of a model without adapters.
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
