"""Rewards from a score of bare texts: one a sentence, by what the sentence changes, or one a response.

A continuation is scored without its prompt. What scores texts is a classifier of toxicity, a service or a word list:
each text once, the shortest first, and what it says is checked. How a classifier is loaded and run is
`models/encoders/classifier.py`'s work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Protocol, get_args, runtime_checkable

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.markers import ModelName, harmless
from finegrained_rlhf.core.records import Prompt, SegmentScores
from finegrained_rlhf.models.config import Activation
from finegrained_rlhf.rewards.protocol import BaseScorer
from finegrained_rlhf.text.plain_text import TooLong
from finegrained_rlhf.text.segmentation import DEFAULT_SEGMENTER, Granularity, Segmenter, Span, cutter, look_ahead_of

if TYPE_CHECKING:
    import torch

    from finegrained_rlhf.models.encoders.classifier import TextClassifier


@runtime_checkable
class TextScorer(Protocol):
    """Says how much of something a text has, from 0 (nothing) to 1.

    Attributes:
        identity: what gives the scores, with every setting that changes them: two scorers of one identity give a text
            the same score. Kept scores are filed under it, so it must hold no secret.
    """

    identity: str

    def setup(self, device: torch.device) -> None:
        """Load what is heavy and move it to `device`. Called once, before the first `score_texts`."""

    def score_texts(self, texts: Sequence[str]) -> list[float]:
        """One number in [0, 1] a text, in order. Texts may occur twice; none is empty.

        Raises:
            FineGrainedError: a text has no score; none is ever made up.
        """


def distinct_scores(scorer: TextScorer, texts: Iterable[str]) -> dict[str, float]:
    """The score of each text. Every text goes to the scorer once, all in one call, the shortest first.

    Args:
        scorer: set up.
        texts: none empty; may hold a text twice.

    Raises:
        ConfigError: the scorer gave something else than a number in [0, 1] for each text.
        FineGrainedError: a text could not be scored.
    """
    wanted = sorted(set(texts), key=lambda text: (len(text), text))
    if not wanted:
        return {}
    scores = [float(score) for score in scorer.score_texts(wanted)]
    if len(scores) != len(wanted):
        raise ConfigError(f"{scorer.identity} gave {len(scores)} scores for {len(wanted)} texts")
    for text, score in zip(wanted, scores, strict=True):
        if not (math.isfinite(score) and 0.0 <= score <= 1.0):
            raise ConfigError(f"{scorer.identity} gave {score} for a text of {len(text)} characters, not 0 to 1")
    return dict(zip(wanted, scores, strict=True))


def known_scores(scorer: TextScorer, texts: Iterable[str]) -> tuple[dict[str, float], str | None]:
    """The scores of those texts that the scorer can judge; texts that it refuses (DataError) are not among them.

    Where it refuses some of many, halves are asked until it is known which.

    Args:
        scorer: set up.
        texts: none empty; may hold a text twice.

    Returns:
        A score by text, and why the last text that has none was refused; None where all have one.

    Raises:
        FineGrainedError: anything else than a text is wrong: the service is away, or the key.
    """
    wanted = sorted(set(texts), key=lambda text: (len(text), text))
    try:
        return distinct_scores(scorer, wanted), None
    except DataError as error:
        reason = str(error)
    if len(wanted) == 1:
        return {}, reason
    halves: Sequence[Sequence[str]] = (wanted[: len(wanted) // 2], wanted[len(wanted) // 2 :])
    scores: dict[str, float] = {}
    for half in halves:
        half_scores, why = known_scores(scorer, half)
        scores |= half_scores
        reason = why or reason
    return scores, reason


class _TextReward:
    """What both rewards share: how a response is cut, and how texts are scored.

    Scores are not kept for the next call: a scorer that batches texts gives a text slightly different scores in
    different company, and a run that is resumed would then go another way than one that was not.

    Args:
        scorer: of texts; its score is what the reward works against.
        granularity: what a segment is: `sentence` or `sub_sentence`.
        segmenter: `english`, `rules`, a spaCy pipeline, or a segmenter of one's own.
    """

    error_free_from: float
    value_range: tuple[float, float]
    reads_on = False

    def __init__(
        self,
        scorer: TextScorer,
        granularity: Granularity = "sentence",
        segmenter: str | Segmenter = DEFAULT_SEGMENTER,
    ) -> None:
        self.scorer, self.granularity, self._cut = scorer, granularity, cutter(segmenter, granularity)
        self.look_ahead = look_ahead_of(segmenter, granularity)

    def setup(self, device: torch.device) -> None:
        """Load the scorer and move it to `device`."""
        self.scorer.setup(device)

    def segments(self, response: str) -> tuple[Span, ...]:
        """Character spans of a response's segments."""
        return tuple(self._cut(response))


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
        scores = distinct_scores(self.scorer, [prefix for row in prefixes for prefix in row])
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
        """Score R responses as wholes; arguments and errors are those of `PrefixDifferenceScorer.score`."""
        ends = [max((end for _, end in self.segments(response)), default=0) for response in responses]
        texts = [response[:end] for response, end in zip(responses, ends, strict=True)]
        scores = {"": 0.0, **distinct_scores(self.scorer, [text for text in texts if text])}
        spans = tuple(((0, len(response)),) for response in responses)
        return SegmentScores(spans, tuple((1.0 - scores[text],) for text in texts), whole_response=True)


class ClassifierScorer:
    """The probability that a classifier gives to one of its labels.

    Args:
        path: directory of a sequence classification model with safetensors and its tokenizer, or a Hub name.
        label: the label whose probability is the score, as the model's `id2label` names it.
        activation: `sigmoid` where every label is a question of its own, `softmax` where the labels exclude each other;
            None takes what the model's `problem_type` says, and softmax for two labels where it says nothing.
        batch_size: texts in one forward pass; batches are made of texts of similar length.
        max_length: longest input in tokens; None takes the model's.
        too_long: a longer text loses its end, counted and logged (`truncate`), or ends the run (`refuse`).
    """

    def __init__(
        self,
        path: ModelName,
        label: str,
        activation: Activation | None = None,
        batch_size: Annotated[int, harmless] = 64,
        max_length: int | None = None,
        too_long: TooLong = "truncate",
    ) -> None:
        for name, value, known in (("activation", activation, Activation), ("too_long", too_long, TooLong)):
            if value is not None and value not in get_args(known):
                raise ConfigError(f"{name} must be {' or '.join(get_args(known))}, got {value!r}")
        if batch_size < 1 or (max_length is not None and max_length < 4):
            raise ConfigError(f"need batch_size >= 1 and max_length >= 4, got {batch_size} and {max_length}")
        self.path, self.label, self.activation = path, label, activation
        self.batch_size, self.max_length, self.too_long = batch_size, max_length, too_long
        self.identity = f"classifier {path} label={label} activation={activation} max_length={max_length}"
        self._classifier: TextClassifier | None = None

    def setup(self, device: torch.device | str = "cpu") -> None:
        """Read the model onto `device`.

        Raises:
            ModelError: it is missing or damaged, does not know the label, or needs an `activation`.
        """
        from finegrained_rlhf.models.encoders.classifier import TextClassifier

        self._classifier = TextClassifier.open(self.path, self.label, self.activation, self.max_length, self.too_long)
        self._classifier.network.to(device)

    def score_texts(self, texts: Sequence[str]) -> list[float]:
        """The label's probability in each text.

        Raises:
            DataError: a text is longer than the model reads and `too_long` is `refuse`.
        """
        if self._classifier is None:
            self.setup()
        assert self._classifier is not None
        return self._classifier.probabilities(texts, self.batch_size)


class FunctionScorer(BaseScorer):
    """One value a response, by a function of one's own: `function(prompt, response) -> float`, where both are texts.

    Args:
        function: of the prompt as the policy reads it and a response; finite. In a configuration:
            `{_target_: my_rewards.polite, _partial_: true}`.
    """

    def __init__(self, function: Callable[[str, str], float]) -> None:
        if not callable(function):
            raise ConfigError(f"function: expected a function of two texts, got {function!r}; give it _partial_: true")
        self.function = function

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        """R values, each of a whole response; one without a word has none."""
        values = [
            (float(self.function(prompt.text, response)),) if response.strip() else ()
            for prompt, response in zip(prompts, responses, strict=True)
        ]
        spans = [((0, len(response)),) if value else () for response, value in zip(responses, values, strict=True)]
        return SegmentScores(spans, values, whole_response=True)
