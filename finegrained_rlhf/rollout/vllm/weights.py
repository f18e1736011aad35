"""The policy's weights as vLLM reads them: files in a directory, named by what they hold.

A version is a digest of the weights themselves. So whoever holds a version holds these weights, in whatever run, and
after whatever was killed.
"""

from __future__ import annotations

import hashlib
import shutil
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from finegrained_rlhf.core.files import atomic_directory
from finegrained_rlhf.models.lora import adapter_weights, merged_state, plain_state
from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.models.weights.saving import Copies, adapter_to_save, pretrained_to_save
from finegrained_rlhf.models.weights.sharded import is_sharded

PREFIX = "fg-"
"""Begins every version of ours. A server that has just started calls its weights otherwise."""


@dataclass(frozen=True)
class Weights:
    """What vLLM is to draw by.

    Attributes:
        version: of the model's weights.
        model: their directory, in the Hugging Face layout.
        adapter: version of a LoRA adapter that is put on them; None: they are all.
        adapter_path: its directory, as peft writes it.
    """

    version: str
    model: Path
    adapter: str | None = None
    adapter_path: Path | None = None


def signature(model: nn.Module) -> tuple[tuple[int, int], ...]:
    """What is another one once an optimizer or a checkpoint has moved the weights.

    Weights in shards come and go, and are left out: what moves them moves norms, embeddings or adapters too.
    """
    parts = (part for part in model.modules() if not is_sharded(part))
    return tuple((p.data_ptr(), p._version) for part in parts for p in part.parameters(recurse=False))


class WeightFiles:
    """Writes the weights of a policy, each version once, and removes those that nobody needs any more.

    Args:
        policy: in the main process; whole, or all processes take part in `write`.
        directory: of all versions.
        dtype: in which they are written.
    """

    def __init__(self, policy: Policy, directory: Path, dtype: torch.dtype) -> None:
        self._policy, self._directory, self._dtype = policy, directory.absolute(), dtype
        self._base: str | None = None
        weakref.finalize(self, remove, self._directory)  # when the run ends; a killed one's go when it is resumed

    def write(self, adapters: bool) -> Weights:
        """Write the weights as they are now.

        Args:
            adapters: a LoRA policy is written as what it began with, once, and its adapter; else with its adapter
                added in.
        """
        policy, take = self._policy, Copies()
        if policy.adapter is None or not adapters:
            version = self._write_model(merged_state(policy.model, take))
            return Weights(version, self._directory / version)
        if self._base is None:
            self._base = self._write_model(plain_state(policy.model, take))
        inside = {name: take(tensor) for name, tensor in adapter_weights(policy.model).items()}
        version = digest({f"{self._base}.{name}": tensor for name, tensor in inside.items()})
        self._write(version, adapter_to_save(policy, inside))
        return Weights(self._base, self._directory / self._base, version, self._directory / version)

    def keep(self, weights: Weights) -> None:
        """Remove all versions but this one."""
        remove(self._directory, weights.version, weights.adapter)

    def _write_model(self, state: Mapping[str, Tensor]) -> str:
        cast: dict[int, Tensor] = {}
        for tensor in state.values():  # tied weights stay one
            cast.setdefault(id(tensor), tensor.to(self._dtype) if tensor.is_floating_point() else tensor)
        state = {name: cast[id(tensor)] for name, tensor in state.items()}
        version = digest(state)
        self._write(version, pretrained_to_save(self._policy.model, state))
        return version

    def _write(self, version: str, write: Any) -> None:
        path = self._directory / version
        if not path.is_dir():  # an earlier run may have left it, whole
            with atomic_directory(path) as temporary:
                write(temporary)


def remove(directory: Path, *but: str | None) -> None:
    """Remove what was written into a directory, but for some versions."""
    for path in directory.glob(f"{PREFIX}*"):
        if path.name not in but:
            shutil.rmtree(path, ignore_errors=True)


def digest(state: Mapping[str, Tensor]) -> str:
    """The version of weights on the CPU: a digest of their names, shapes, dtypes and bytes."""
    sha = hashlib.sha256()
    for name, tensor in state.items():
        sha.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        sha.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return PREFIX + sha.hexdigest()[:16]
