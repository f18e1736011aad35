"""Sizes of batches, and what selects a classifier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.markers import harmless

ClassifierSelection = Literal["loss", "accuracy"]
"""What of the held-out texts chooses a checkpoint."""


@dataclass(frozen=True)
class ClassifierBatchConfig:
    """How many texts are taken at a time.

    Attributes:
        batch_size: texts a training step, over all processes.
        micro_batch_size: texts in one forward and backward pass of a process; does not change a step.
        eval_batch_size: texts in one forward pass of a validation.
    """

    batch_size: int = 32
    micro_batch_size: Annotated[int, harmless] = 32
    eval_batch_size: Annotated[int, harmless] = 64

    def __post_init__(self) -> None:
        if min(self.batch_size, self.micro_batch_size, self.eval_batch_size) < 1:
            raise ConfigError(f"batch sizes must be at least 1, got {self}")
