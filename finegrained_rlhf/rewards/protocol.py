"""What a reward component must offer. Reward models, rules and a user's own classes all satisfy it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch

from finegrained_rlhf.core.records import Prompt, SegmentScores


@runtime_checkable
class Scorer(Protocol):
    """Scores segments of responses, or responses as a whole."""

    def setup(self, device: torch.device) -> None:
        """Load what is heavy and move it to `device`. Called once, before the first `score`."""

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        """Score R responses.

        Args:
            prompts: R prompts, one a response; their metadata holds `question`, `passages` and `references`.
            responses: R texts, some of which may be empty.

        Returns:
            Spans and values of each response. Values must be finite.
        """


class BaseScorer:
    """A convenient base for scorers that have nothing to load."""

    def setup(self, device: torch.device) -> None:
        """Nothing to load."""
