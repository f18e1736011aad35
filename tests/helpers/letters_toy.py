"""A scorer of which every response has many segments, whatever a tiny policy writes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from finegrained_rlhf.core.records import Prompt, SegmentScores


class LetterScorer:
    """Each character is a segment: 1 for a vowel, −0.2 for any other."""

    def setup(self, device: torch.device) -> None:
        """Nothing to load."""

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        spans = [tuple((i, i + 1) for i in range(len(text))) for text in responses]
        values = [tuple(1.0 if letter in "aeiou" else -0.2 for letter in text) for text in responses]
        return SegmentScores(spans, values)
