"""What trainers of one model and one optimizer do alike: the update, what a checkpoint keeps, and its checks."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from finegrained_rlhf.core.errors import CheckpointError, ConsistencyError
from finegrained_rlhf.core.files import Write, write_all
from finegrained_rlhf.runtime.optimizer import Optimizer
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.runtime.sharding.shards import copy_into


class OptimizerTrainer(ABC):
    """A trainer with one optimizer.

    Attributes:
        optimizer: over everything that is trained.
        processes: of the run.
        stop_reason: set to end training early.
    """

    optimizer: Optimizer
    processes: Processes
    stop_reason: str | None = None

    def optimizer_step(self, step: int) -> float:
        """Sum gradients over processes, update with the rate of training step `step` (from 1), and clear gradients.

        Returns:
            The global gradient norm before clipping.
        """
        return self.optimizer.step(step)

    def state_to_save(self) -> Write:
        """The optimizer's moments; the rest of a step follows from the saved model, the seed and the step."""
        return self.optimizer.to_save()

    @abstractmethod
    def model_to_save(self) -> Write:
        """The model as it is now."""

    @abstractmethod
    def load_state(self, checkpoint: Path) -> None:
        """Read what a checkpoint holds."""


class ModelTrainer(OptimizerTrainer):
    """A trainer of a model that saves itself (`model.save(directory)`), in a checkpoint's `model/`.

    Attributes:
        model: the module that is trained.
    """

    model: Any

    @staticmethod
    @abstractmethod
    def copy_of(model: Any, directory: Path) -> nn.Module:
        """The model that was saved in `directory`, of the kind of `model`.

        Raises:
            ModelError: it is missing or cannot be read.
        """

    def model_to_save(self) -> Write:
        """The model: encoder and tokenizer in the Hugging Face layout, everything else beside them."""
        if not self.processes.is_main:
            return write_all(())
        copies: dict[int, Any] = {}  # deepcopy takes these for the tensors of the model
        for parameter in self.model.parameters():
            on_cpu = parameter.detach().to("cpu", copy=True)
            copies[id(parameter)] = nn.Parameter(on_cpu, requires_grad=parameter.requires_grad)
        for buffer in self.model.buffers():
            copies[id(buffer)] = buffer.detach().to("cpu", copy=True)
        save: Write = copy.deepcopy(self.model, copies).save
        return save

    def load_state(self, checkpoint: Path) -> None:
        """Read weights and moments of a checkpoint.

        Raises:
            ModelError: the model cannot be read.
            CheckpointError: its weights or moments are of another architecture.
        """
        stored, own = self.copy_of(self.model, checkpoint / "model").state_dict(), self.model.state_dict()
        if {name: tensor.shape for name, tensor in stored.items()} != {name: own[name].shape for name in own}:
            kind = type(self.model).__name__
            raise CheckpointError(f"{checkpoint}: holds a {kind} of another architecture than this run's")
        for name, tensor in stored.items():
            copy_into(own[name], tensor)
        self.optimizer.load(checkpoint)


def check_finite(step: int, metrics: Mapping[str, float], names: Sequence[str]) -> None:
    """What a step measured of its update is finite.

    Args:
        step: the training step.
        metrics: of that step.
        names: the metrics that must be numbers, such as losses and the gradient norm.

    Raises:
        ConsistencyError: one is not.
    """
    for name in names:
        if not math.isfinite(metrics[name]):
            raise ConsistencyError(
                f"step {step}: {name} is {metrics[name]}; the last checkpoint is sound, continue from it with a "
                "lower learning rate or in fp32"
            )
