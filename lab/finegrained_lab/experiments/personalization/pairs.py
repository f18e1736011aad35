"""Training on pairs of a draft and what became of it, as a configuration: what `finegrained train-pairs` runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from finegrained_rlhf.core.markers import above, at_least
from finegrained_rlhf.training.sft.job import TrainSFT


@dataclass(frozen=True, kw_only=True)
class TrainPairs(TrainSFT):
    """DPO on a prompt file whose first answer was preferred to its second; fields of training: see `TrainSFT`.

    The reference is the policy that the run begins with.

    Attributes:
        beta: β of DPO.
        positive: λ of DPO-Positive; 0 is DPO.
        sft: α of the term −α log π(y_w|x) / |y_w| (Pang et al., 2024, arXiv 2404.19733, eq. 1).
        spans: compare the tokens alone in which the two answers differ.
        shuffle: a control: turn pairs round by a coin each.
    """

    assembly: ClassVar[str] = "finegrained_lab.experiments.personalization.pair_trainer.assemble_pairs"

    beta: Annotated[float, above(0)] = 0.1
    positive: Annotated[float, at_least(0)] = 0.0
    sft: Annotated[float, at_least(0)] = 0.0
    spans: bool = False
    shuffle: bool = False
