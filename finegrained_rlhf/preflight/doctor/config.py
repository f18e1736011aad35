"""How thorough a preflight is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import OutputFile, above, at_least


@dataclass(frozen=True)
class DoctorConfig(Settings):
    """How thorough a preflight is.

    Attributes:
        prompts: prompts of the sample that is answered, scored and trained on; None takes `rollout.prompts_per_step`.
        two_processes: repeat the training step with two processes and compare.
        timeout: seconds that this may take.
        output: JSON file for the result; None writes none.
    """

    prompts: Annotated[int | None, at_least(1)] = 4
    two_processes: bool = True
    timeout: Annotated[float, above(0)] = 600.0
    output: OutputFile | None = None
