"""Sizes of batches, and what selects a classifier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import at_least, harmless

ClassifierSelection = Literal["loss", "accuracy"]
"""What of the held-out texts chooses a checkpoint."""


@dataclass(frozen=True)
class ClassifierBatchConfig(Settings):
    """How many texts are taken at a time.

    Attributes:
        batch_size: texts a training step, over all processes.
        micro_batch_size: texts in one forward and backward pass of a process; does not change a step.
        eval_batch_size: texts in one forward pass of a validation.
    """

    batch_size: Annotated[int, at_least(1)] = 32
    micro_batch_size: Annotated[int, at_least(1), harmless] = 32
    eval_batch_size: Annotated[int, at_least(1), harmless] = 64
