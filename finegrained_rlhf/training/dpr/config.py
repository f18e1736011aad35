"""Sizes of batches, and what a query brings into a training step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import at_least, harmless

DprSelection = Literal["mean_rank", "mrr"]
"""The mean rank, as in the paper, which a few queries far down decide; or the mean reciprocal rank, which those that
are near the top do."""
DprPositives = Literal["first", "all"]
"""Which of a query's positives are trained on: the first alone, or every one in turn."""


@dataclass(frozen=True)
class DprBatchConfig(Settings):
    """How many texts are taken at a time.

    Attributes:
        batch_size: queries a training step, over all processes; each is compared with the passages of all.
        micro_batch_size: texts in one forward and backward pass of a process; does not change a step, but where a
            process has more queries (or trained passages), they go through their tower twice.
        eval_batch_size: texts in one forward pass without gradients.
    """

    batch_size: Annotated[int, at_least(1)] = 48
    micro_batch_size: Annotated[int, at_least(1), harmless] = 48
    eval_batch_size: Annotated[int, at_least(1), harmless] = 64


@dataclass(frozen=True)
class DprSampling(Settings):
    """What a query brings into a training step.

    Attributes:
        positives: `first` takes a record's first positive in every step; `all` draws one of them in each.
        hard_negatives: drawn of a record's hard negatives, or all where it has fewer.
        other_negatives: drawn of its other negatives, likewise.
    """

    positives: DprPositives = "first"
    hard_negatives: Annotated[int, at_least(0)] = 1
    other_negatives: Annotated[int, at_least(0)] = 1
