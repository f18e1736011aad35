"""The moments of a checkpoint, in one file or in one for each process that wrote some."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from finegrained_rlhf.core.errors import CheckpointError


@dataclass(frozen=True)
class StoredMoments:
    """Moments as they lie in a checkpoint.

    Attributes:
        path: for errors: the file, or the first of them.
        files: the files of each key, in rank order. A key is `moment/name`; one that lies in several files lies there
            in parts, along its first dimension.
    """

    path: Path
    files: Mapping[str, tuple[Path, ...]]

    @staticmethod
    def open(directory: Path, name: str) -> StoredMoments:
        """The moments called `name` in a checkpoint.

        Raises:
            CheckpointError: a file is missing or cannot be read.
        """
        unsharded = directory / f"{name}.safetensors"
        parts = sorted(directory.glob(f"{name}.*-of-*.safetensors"), key=_number)
        paths = [unsharded] if unsharded.is_file() or not parts else parts
        if paths == parts and [_number(part) for part in parts] != list(range(1, _count(parts[0]) + 1)):
            raise CheckpointError(
                f"{directory}: only {len(parts)} of the {_count(parts[0])} files {name}.*-of-*.safetensors of the "
                "optimizer state are here"
            )
        files: dict[str, tuple[Path, ...]] = {}
        for path in paths:
            try:
                with safe_open(path, "pt") as stored:
                    keys = list(stored.keys())
            except (OSError, SafetensorError) as error:
                raise CheckpointError(f"{path}: cannot read the optimizer state ({error})") from None
            for key in keys:
                files[key] = (*files.get(key, ()), path)
        return StoredMoments(paths[0], files)

    @property
    def names(self) -> set[str]:
        """The parameters that have moments here; none before the first update."""
        return {key.split("/", 1)[1] for key in self.files}

    def check(self, names: Collection[str]) -> None:
        """Require that these parameters have moments here, and no others, or that there are none at all.

        Raises:
            CheckpointError: they belong to another model.
        """
        if self.files and self.names != set(names):
            odd = ", ".join(sorted(self.names ^ set(names))[:3])
            raise CheckpointError(f"{self.path}: the optimizer state belongs to another model; differing: {odd}")

    def read(self, moment: str, name: str, shape: torch.Size, rows: range | None = None) -> Tensor:
        """One moment of one parameter.

        Args:
            moment: for example `exp_avg`.
            name: of the parameter.
            shape: that the whole moment must have (of `step`, a number, any is right).
            rows: the part along the first dimension that is asked for; None for all.

        Raises:
            CheckpointError: it is missing, or of another shape.
        """
        key = f"{moment}/{name}"
        if key not in self.files:
            raise CheckpointError(f"{self.path}: the state of another kind of optimizer ({name} has no {moment})")
        parts = []
        for path in self.files[key]:
            with safe_open(path, "pt") as stored:
                parts.append(stored.get_tensor(key))
        if moment == "step":
            return parts[0]
        value = parts[0] if len(parts) == 1 else torch.cat(parts)
        if value.shape != shape:
            raise CheckpointError(
                f"{self.path}: {moment} of {name} has shape {tuple(shape)}, the stored state {tuple(value.shape)}"
            )
        return value if rows is None else value[rows.start : rows.stop]


def _number(path: Path) -> int:
    match = re.search(r"\.(\d+)-of-\d+\.safetensors$", path.name)
    return int(match[1]) if match else 0


def _count(path: Path) -> int:
    match = re.search(r"-of-(\d+)\.safetensors$", path.name)
    return int(match[1]) if match else 0
