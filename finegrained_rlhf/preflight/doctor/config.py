"""How thorough a preflight is."""

from __future__ import annotations

from dataclasses import dataclass

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.markers import OutputFile


@dataclass(frozen=True)
class DoctorConfig:
    """How thorough a preflight is.

    Attributes:
        prompts: prompts of the sample that is answered, scored and trained on; None takes `rollout.prompts_per_step`.
        two_processes: repeat the training step with two processes and compare.
        timeout: seconds that this may take.
        output: JSON file for the result; None writes none.
    """

    prompts: int | None = 4
    two_processes: bool = True
    timeout: float = 600.0
    output: OutputFile | None = None

    def __post_init__(self) -> None:
        if self.prompts is not None and self.prompts < 1:
            raise ConfigError(f"doctor.prompts: expected null or at least 1, got {self.prompts}")
        if self.timeout <= 0:
            raise ConfigError(f"doctor.timeout: expected more than 0 seconds, got {self.timeout}")
