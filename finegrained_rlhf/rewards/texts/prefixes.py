"""Rewards from a score of bare texts: one a sentence, by what the sentence changes, or one a response.

A continuation is scored without its prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, get_args

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.records import Prompt, SegmentScores
from finegrained_rlhf.rewards.texts.protocol import TextScorer
from finegrained_rlhf.rewards.texts.scoring import distinct_scores
from finegrained_rlhf.text.segmentation import DEFAULT_SEGMENTER, Segmenter, Span, shared_segmenter

if TYPE_CHECKING:
    import torch

Granularity = Literal["sub_sentence", "sentence"]


class _TextReward:
    """What both rewards share: how a response is cut, and how texts are scored.

    Args:
        scorer: of texts; its score is what the reward works against.
        granularity: what a segment is: `sentence` or `sub_sentence`.
        segmenter: `english`, `rules`, a spaCy pipeline, or a segmenter of one's own.
    """

    error_free_from: float
    value_range: tuple[float, float]

    def __init__(
        self,
        scorer: TextScorer,
        granularity: Granularity = "sentence",
        segmenter: str | Segmenter = DEFAULT_SEGMENTER,
    ) -> None:
        if granularity not in get_args(Granularity):
            raise ConfigError(f"granularity must be {' or '.join(get_args(Granularity))}, got {granularity!r}")
        self.scorer, self.granularity = scorer, granularity
        self._segmenter = shared_segmenter(segmenter) if isinstance(segmenter, str) else segmenter

    def setup(self, device: torch.device) -> None:
        """Load the scorer and move it to `device`."""
        self.scorer.setup(device)

    def segments(self, response: str) -> tuple[Span, ...]:
        """Character spans of a response's segments."""
        cut = self._segmenter.sentences if self.granularity == "sentence" else self._segmenter.sub_sentences
        return tuple(cut(response))

    def _scores(self, texts: Sequence[str]) -> dict[str, float]:
        """The score of each text. Every text goes to the scorer once, all in one call, the shortest first.

        Scores are not kept for the next call: a scorer that batches texts gives a text slightly different scores in
        different company, and a run that is resumed would then go another way than one that was not.

        Raises:
            ConfigError: the scorer gave something else than a number in [0, 1] for each text.
        """
        return distinct_scores(self.scorer, texts)


class PrefixDifferenceScorer(_TextReward):
    """R_j = S(y_1…y_{j−1}) − S(y_1…y_j) for segment j: what the segment took away (thesis, section 6.3).

    A segment that raises the score S earns a negative reward, one that lowers it a positive one. S of no text is 0, so
    that a response's rewards add up to −S(y): those of `WholeTextScorer`, less 1. A text is scored exactly as it stands
    in the response, up to where its last segment ends. A response without a segment has no reward.
    """

    error_free_from = 0.0
    value_range = (-1.0, 1.0)

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        """Score each segment of R responses; J segments are J texts.

        Args:
            prompts: R prompts; not read.
            responses: R texts.

        Raises:
            FineGrainedError: a text could not be scored.
        """
        spans = tuple(self.segments(response) for response in responses)
        prefixes = [[text[:end] for _, end in row] for text, row in zip(responses, spans, strict=True)]
        scores = self._scores([prefix for row in prefixes for prefix in row])
        values = []
        for row in prefixes:
            levels = [0.0, *(scores[prefix] for prefix in row)]
            values.append(tuple(before - after for before, after in zip(levels, levels[1:], strict=False)))
        return SegmentScores(spans, tuple(values))


class WholeTextScorer(_TextReward):
    """R = 1 − S(y), one reward a response: the holistic counterpart of `PrefixDifferenceScorer` (thesis, section 6.3).

    The text ends where its last segment does, so that both score the same text. A response without a segment earns 1.
    """

    error_free_from = 0.5
    value_range = (0.0, 1.0)

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        """Score R responses as wholes.

        Args:
            prompts: R prompts; not read.
            responses: R texts.

        Raises:
            FineGrainedError: a text could not be scored.
        """
        ends = [max((end for _, end in self.segments(response)), default=0) for response in responses]
        texts = [response[:end] for response, end in zip(responses, ends, strict=True)]
        scores = {"": 0.0, **self._scores([text for text in texts if text])}
        spans = tuple(((0, len(response)),) for response in responses)
        return SegmentScores(spans, tuple((1.0 - scores[text],) for text in texts), whole_response=True)
