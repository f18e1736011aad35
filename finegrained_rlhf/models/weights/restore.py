"""Copying the exact weights of a checkpoint into a model that exists.

Knows safetensors files. Knows no configuration and no policy.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from finegrained_rlhf.core.errors import CheckpointError


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
    own = {name: tensor for name, tensor in module.state_dict().items() if part in name}
    strange = sorted(set(state) - set(own)) or [k for k in state if state[k].shape != own[k].shape]
    addresses = {own[name].data_ptr() for name in state if name in own}
    absent = sorted(name for name, tensor in own.items() if tensor.numel() and tensor.data_ptr() not in addresses)
    if not state or strange or absent:
        what = f"unexpected {strange[0]}" if strange else f"missing {absent[0]}" if absent else "no weights"
        raise CheckpointError(
            f"{path}: belongs to another architecture than this run's {type(module).__name__} ({what})"
        )
    with torch.no_grad():
        for name, tensor in state.items():
            own[name].copy_(tensor)
