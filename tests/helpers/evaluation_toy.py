"""Rewards and a monitor that anyone can work out by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch

from finegrained_rlhf.core.records import Prompt, SegmentScores
from finegrained_rlhf.rewards import BaseScorer, ComponentConfig, RewardComposer, RewardConfig


class WordScorer(BaseScorer):
    """+1 for every word, −1 for the word "bad"."""

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        spans, values = [], []
        for text in responses:
            starts = [i for i in range(len(text)) if text[i] != " " and (i == 0 or text[i - 1] == " ")]
            words = [text[start:].split()[0] for start in starts]
            spans.append(tuple((s, s + len(w)) for s, w in zip(starts, words, strict=True)))
            values.append(tuple(-1.0 if word == "bad" else 1.0 for word in words))
        return SegmentScores(spans, values)


class LengthScorer(BaseScorer):
    """The number of characters of a response."""

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        return SegmentScores(
            [((0, len(text)),) for text in responses], [(float(len(text)),) for text in responses], whole_response=True
        )


class LetterMonitor:
    """How many characters of the answers are the letter "d"."""

    def counts(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> Mapping[str, tuple[float, float]]:
        return {"d_rate": (sum(text.count("d") for text in responses), sum(map(len, responses))), "nothing": (0, 0)}


def composer(normalisation: Literal["none", "running"] = "none") -> RewardComposer:
    made = RewardComposer(
        RewardConfig(
            {"words": WordScorer(), "length": LengthScorer()},
            {"words": 0.5, "length": 0.1},
            {"length": ComponentConfig(normalisation)},
        )
    )
    made.setup(torch.device("cpu"))
    return made
