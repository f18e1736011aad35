"""How many dialogues and passages a training of DIALKI, or of a baseline, takes at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import at_least, harmless


@dataclass(frozen=True)
class DialkiBatchConfig(Settings):
    """How many dialogues and passages are taken at a time.

    Attributes:
        batch_size: dialogues a training step, over all processes.
        micro_batch_size: dialogues in one forward and backward pass on one process; None takes the whole share.
        passages: passages of a dialogue in training: one with gold and sampled others (8 on Doc2Dial, 10 on Wizard of
            Wikipedia, 5 on INSCIT).
        eval_batch_size: dialogues in one forward pass of a validation.
        group_size: most inputs (passages) that go through the encoder together; they are sorted by length before.
    """

    batch_size: Annotated[int, at_least(1)] = 4
    micro_batch_size: Annotated[int | None, at_least(1), harmless] = None
    passages: Annotated[int, at_least(1)] = 8
    eval_batch_size: Annotated[int, at_least(1), harmless] = 16
    group_size: Annotated[int, at_least(1), harmless] = 64
