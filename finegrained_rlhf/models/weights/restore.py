"""Copying the exact weights of a checkpoint into a model that exists.

transformers gives some weights other names and shapes on disk.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import PreTrainedModel

from finegrained_rlhf.core.errors import CheckpointError, ModelError
from finegrained_rlhf.models.from_disk import open_weights
from finegrained_rlhf.models.quiet import quiet_transformers
from finegrained_rlhf.runtime.sharding.shards import copy_into, part_here


def restore_weights(module: torch.nn.Module, path: Path, part: str = "") -> None:
    """Copy the exact weights of a checkpoint into a model that exists.

    Args:
        module: the model.
        path: a safetensors file of its state, or a directory in the Hugging Face layout (one file or several).
        part: only the tensors with this in their names, which the file must then hold; all tensors by default.

    Raises:
        CheckpointError: the weights are missing, damaged, or belong to another architecture.
    """
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    state: dict[str, torch.Tensor] = {}
    try:
        for file in files:
            state.update(load_file(file))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be read ({str(error).strip().splitlines()[0]})") from None
    if path.is_dir() and not set(state) <= set(module.state_dict()):
        state = _as_transformers_reads(module, path) or state
    own = {name: tensor for name, tensor in module.state_dict().items() if part in name}
    here = {name: part_here(tensor) for name, tensor in own.items()}
    strange = sorted(set(state) - set(own)) or [k for k in state if state[k].shape != own[k].shape]
    addresses = {here[name].data_ptr() for name in state if name in own}
    absent = sorted(name for name, tensor in here.items() if tensor.numel() and tensor.data_ptr() not in addresses)
    if not state or strange or absent:
        what = f"unexpected {strange[0]}" if strange else f"missing {absent[0]}" if absent else "no weights"
        raise CheckpointError(
            f"{path}: belongs to another architecture than this run's {type(module).__name__} ({what})"
        )
    for name, tensor in state.items():
        copy_into(own[name], tensor)


def _as_transformers_reads(module: torch.nn.Module, directory: Path) -> dict[str, torch.Tensor]:
    """The weights under the names that they have in `module`; empty where they are not those of its class.

    `save_pretrained` writes the layout that a family's published weights have, which may differ from that of the
    modules: T5Gemma 2's text encoder, Qwen3-MoE's experts.
    """
    if not isinstance(module, PreTrainedModel):
        return {}
    try:
        with quiet_transformers():
            model, info = open_weights(type(module), directory, dtype="auto", output_loading_info=True)
    except (OSError, ValueError, RuntimeError, KeyError, ModelError):
        return {}
    whole = not (info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"])
    state: dict[str, torch.Tensor] = model.state_dict() if whole else {}
    return state
