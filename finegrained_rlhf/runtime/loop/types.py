"""What the training loop takes and gives: its configuration, the trainer's side of the contract, and the result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import Write
from finegrained_rlhf.core.markers import at_least
from finegrained_rlhf.runtime.optimizer import Optimizer


@dataclass(frozen=True)
class LoopConfig(Settings):
    """How long to train and what to keep.

    Attributes:
        total_steps: training steps; may be raised when a run is resumed, and lowered as far as the model
            that it has exported.
        seed: of the run.
        checkpoint_every: training steps between checkpoints; one is always written at step 0 and at the end.
        validate_every: training steps between validations, which also happen at step 0 and at the end; None never
            validates.
        keep_checkpoints: how many of the latest checkpoints stay, beside that of step 0.
        resume: "auto" continues where the run directory stands, "never" starts over, a path starts from that
            checkpoint or from the latest one of that run directory.
        export: where the model goes: "policy" or "model".
        patience: end after this many validations in a row without a new best one; None never does.
    """

    total_steps: Annotated[int, at_least(1)]
    seed: int = 0
    checkpoint_every: Annotated[int, at_least(1)] = 50
    validate_every: Annotated[int | None, at_least(1)] = 50
    keep_checkpoints: Annotated[int, at_least(1)] = 2
    resume: str = "auto"
    export: str = "policy"
    patience: Annotated[int | None, at_least(1)] = None

    def __post_init__(self) -> None:
        if self.export not in ("policy", "model"):
            raise ConfigError(f"export: expected policy or model, got {self.export!r}")


class Trainable(Protocol):
    """What a trainer gives to the loop.

    Attributes:
        stop_reason: set by a step or a validation, alike in all processes, to end training early.
        optimizer: over the trained parameters, which are to have the same bits in all processes.
    """

    stop_reason: str | None

    @property
    def optimizer(self) -> Optimizer:
        """Over the trained parameters."""

    def train_step(self, step: int) -> Mapping[str, float]:
        """Do training step `step` (from 1) and return its metrics, alike in all processes."""

    def validate(self, step: int) -> Mapping[str, float]:
        """Metrics with "score" (higher is better), alike in all processes; {} when there is nothing to validate on.

        With `constraints_missed`, a validation that misses fewer is better than any that misses more.
        """

    def model_to_save(self) -> Write:
        """The model as it is now, in the Hugging Face layout (every process; the main one alone writes)."""

    def state_to_save(self) -> Write:
        """Everything else that the next step depends on, as it is now (every process; each writes its own part)."""

    def load_state(self, checkpoint: Path) -> None:
        """Read model and state from a checkpoint directory (every process)."""


@dataclass(frozen=True)
class LoopResult:
    """How a run ended.

    Attributes:
        step: the last finished step.
        best_step: the step of the exported model.
        best_score: its validation score; None without validation.
        stop_reason: why it ended early, or None.
        already_done: True when there was nothing left to do.
        best_missed: how many constraints that validation missed.
    """

    step: int
    best_step: int
    best_score: float | None
    stop_reason: str | None
    already_done: bool = False
    best_missed: int = 0
