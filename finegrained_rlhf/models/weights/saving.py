"""Policies and other models in the ordinary Hugging Face layout, taken as they are now and written when it suits.

Weights are copied and not read again, so that they can be written while training goes on, which changes nothing else
that is written.
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
from finegrained_rlhf.models.quiet import quiet_transformers
from finegrained_rlhf.runtime.sharding.shards import is_shard, part_here, whole
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
    if not main:
        take_part(policy.model)
        return write_all(())
    adapter, take = policy.adapter, Copies()
    if adapter is None:
        state = {name: take(tensor) for name, tensor in policy.model.state_dict().items()}
    else:
        state = merged_state(policy.model, take)
    model = pretrained_to_save(policy.model, state)
    inside = {name: take(tensor) for name, tensor in adapter_weights(policy.model).items()}

    def write(directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        model(directory)
        if adapter is not None:
            adapter_to_save(policy, inside)(directory / "adapter")
        policy.tokenizer.save_pretrained(directory)
        record_prompt(directory, policy.prompt)

    return write


def adapter_to_save(policy: Policy, state: Mapping[str, Tensor]) -> Write:
    """What writes the adapter of a LoRA policy as peft does.

    Args:
        policy: gives the adapter's configuration.
        state: its weights, by their names in the model (`adapter_weights`), of any shape.
    """
    inside = {f"base_model.model.{name}": tensor for name, tensor in state.items()}
    return lambda directory: policy.adapter.save_pretrained(directory, selected_adapters=["default"], state_dict=inside)


class Copies:
    """Copies tensors of any shape to the CPU; those that share all of their memory do so in the copies too.

    Shards are gathered first, one tensor after the other: meanwhile the other processes must `take_part`.
    """

    def __init__(self) -> None:
        self._made: dict[tuple[Any, ...], tuple[Tensor, Tensor]] = {}

    def __call__(self, tensor: Tensor) -> Tensor:
        """The copy of a tensor of a model, of the same shape."""
        place = _place(tensor)
        if place not in self._made:  # with the tensor, so that its memory cannot become another's meanwhile
            self._made[place] = tensor, whole(tensor).to("cpu", copy=not is_shard(tensor))
        return self._made[place][1]


def _place(tensor: Tensor) -> tuple[Any, ...]:
    """Where in memory a tensor, or what is here of it, lies, and how; the part here may be empty."""
    here = part_here(tensor)
    return here.untyped_storage()._cdata, here.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype


def take_part(module: nn.Module) -> None:
    """Give the main process, which copies a module's state, what this one has of it: its shards, if any."""
    for tensor in {_place(tensor): tensor for tensor in module.state_dict().values() if is_shard(tensor)}.values():
        whole(tensor)


def pretrained_to_save(model: Any, state: Mapping[str, Tensor]) -> Write:
    """What writes a transformers model with this state in the Hugging Face layout; the model is not read again.

    Args:
        model: gives class, configuration and generation settings.
        state: on the CPU, of the shapes and under the names of a model without adapters.
    """
    shell = pretrained_copy(model, state)
    shell.generation_config = copy.deepcopy(model.generation_config)

    def write(directory: Path) -> None:
        with quiet_transformers():
            shell.save_pretrained(directory)

    return write


def pretrained_copy(model: Any, state: Mapping[str, Tensor]) -> Any:
    """A transformers model with this state, to be saved; a tensor that the state lacks stays without values.

    Args:
        model: gives class and configuration.
        state: on the CPU, of the shapes and under the names of `model`'s own state.
    """
    with torch.device("meta"):
        shell: Any = type(model)(copy.deepcopy(model.config))
    shell.load_state_dict(dict(state), assign=True)
    return shell


def module_to_save(module: nn.Module, file: str, main: bool = True) -> Write:
    """What writes all weights of a module to one safetensors file, those that share memory once.

    Args:
        module: as it is now; where it is in shards, every process must call this.
        file: its name.
        main: whether this process writes; the others write nothing.
    """
    if not main:
        take_part(module)
        return write_all(())
    take, once = Copies(), dict[int, tuple[str, Tensor]]()
    for name, tensor in module.state_dict().items():
        copied = take(tensor)
        once.setdefault(copied.data_ptr() if copied.numel() else id(copied), (name, copied))
    state = {name: tensor.contiguous() for name, tensor in once.values()}
    return lambda directory: save_file(state, directory / file)
