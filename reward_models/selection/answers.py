"""A trained reward model's view of answers without labels: probabilities, rewards and hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.markers import ModelName
from finegrained_rlhf.models.loading import model_directory
from finegrained_rlhf.runtime.directory.fingerprints import fingerprint
from finegrained_rlhf.text.segmentation import Span, shared_segmenter
from finegrained_rlhf.text.templates import PassageText
from reward_models.encoders.inputs import EncodedInput, batches_by_length
from reward_models.encoders.models import RewardModel, load_reward_model, raw_scores
from reward_models.kinds import PairKind, SegmentKind
from reward_models.trust.judging import SegmentVerdicts, segment_verdicts

Array = NDArray[np.float64]


class AnsweredQuestion(Protocol):
    """A question with answers: an item of an annotation project, or anything with these fields."""

    @property
    def id(self) -> str:
        """Names it in errors."""
        ...

    @property
    def question(self) -> str:
        """The question."""
        ...

    @property
    def passages(self) -> Sequence[PassageText]:
        """What the answers should rest on."""
        ...

    @property
    def answers(self) -> Sequence[str]:
        """N ≥ 1, none empty."""
        ...

    @property
    def marked(self) -> int | None:
        """Which answer people mark; None where they only compare."""
        ...


@dataclass(frozen=True)
class JudgedAnswer:
    """What a segment model says of an answer; segments that do not fit into its input are left out.

    Attributes:
        spans: character spans of the segments.
        verdicts: of each, the probability of an error, and whether the model claims one.
    """

    spans: tuple[Span, ...]
    verdicts: SegmentVerdicts


class AnswerReader:
    """A trained reward model that reads answers; its weights are read when it is first asked.

    Args:
        path: directory of the model, or of the run that trained it, or a Hub name.
        batch_size: answers in one forward pass.
        device: `cpu`, `cuda`, …; None takes a GPU where there is one.

    Raises:
        ConfigError: the batch size is below 1.
    """

    def __init__(self, path: ModelName, batch_size: int = 32, device: str | None = None) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch_size: expected at least 1, got {batch_size}")
        self.path, self.batch_size = path, batch_size
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")

    @cached_property
    def model(self) -> RewardModel:
        """The model, in evaluation mode."""
        return load_reward_model(self.path).to(self.device).eval()

    @property
    def kind(self) -> str:
        """Name of what it judges."""
        return self.model.record.kind

    @cached_property
    def version(self) -> str:
        """Its kind and a digest of its files."""
        return f"{self.kind}@{fingerprint(model_directory(self.path, export='model'))[:8]}"

    @torch.no_grad()
    def segments(self, items: Sequence[AnsweredQuestion]) -> list[JudgedAnswer]:
        """What a segment model says of each item's marked answer.

        Raises:
            ConfigError: the model scores whole answers, or nothing of an item is marked.
        """
        spans, inputs = self._segment_inputs(items)
        rows = [i for i, one in enumerate(inputs) if one.separators]
        verdicts = dict(
            zip(rows, segment_verdicts(self.model, [inputs[i] for i in rows], self.batch_size), strict=True)
        )
        nothing = SegmentVerdicts((), ())
        return [JudgedAnswer(spans[i][: len(one.separators)], verdicts.get(i, nothing)) for i, one in enumerate(inputs)]

    @torch.no_grad()
    def scores(self, items: Sequence[AnsweredQuestion]) -> list[Array]:
        """The raw scores of all answers of each item, by a model of whole answers."""
        inputs = self._whole_inputs([(item, answer) for item in items for answer in item.answers])
        scores = raw_scores(self.model, inputs, self.batch_size).double().numpy()
        return np.split(scores, np.cumsum([len(item.answers) for item in items])[:-1])

    def probabilities(self, items: Sequence[AnsweredQuestion]) -> list[Array]:
        """Of each item, what the model thinks probable: an error in each segment, or that one answer beats another.

        Raises:
            ConfigError: a segment model, and nothing of an item is marked.
            DataError: a model of whole answers, and an item has only one.
        """
        if self.model.record.labels_segments:
            return [np.array(one.verdicts.probabilities) for one in self.segments(items)]
        for item in items:
            if len(item.answers) < 2:
                raise DataError(f"a {self.kind} model compares answers, and there is one", record=item.id)
        return [
            np.array([0.5 + 0.5 * np.tanh((first - second) / 2) for first, second in combinations(scores, 2)])
            for scores in self.scores(items)
        ]

    def rewards(self, items: Sequence[AnsweredQuestion]) -> Array:
        """Of each item, how good the model finds its answers, [n].

        A segment model says the mean probability that a segment of the marked answer has no error; a model of whole
        answers the mean score of all answers.
        """
        if self.model.record.labels_segments:
            return np.array([1 - np.mean(one) if len(one) else 1.0 for one in self.probabilities(items)])
        return np.array([scores.mean() for scores in self.scores(items)])

    @torch.no_grad()
    def states(self, items: Sequence[AnsweredQuestion]) -> Array:
        """Of each item, the mean of the hidden states that the head reads in its marked answer, [n, D].

        Without a marked answer, and by a model of whole answers, it is the first one.
        """
        if self.model.record.labels_segments:
            inputs = self._segment_inputs(items)[1]
        else:
            inputs = self._whole_inputs([(item, item.answers[item.marked or 0]) for item in items])
        means = np.zeros((len(items), self.model.model.config.hidden_size))
        for rows, batch in batches_by_length(inputs, self.batch_size, self.model.pad_id, self.model.device):
            states = self.model.head_states(batch).cpu().double().numpy()
            counts = [len(inputs[row].separators) if self.model.record.labels_segments else 1 for row in rows]
            for row, part in zip(rows, np.split(states, np.cumsum(counts)[:-1]), strict=True):
                if len(part):
                    means[row] = part.mean(axis=0)
        return means

    def _segment_inputs(self, items: Sequence[AnsweredQuestion]) -> tuple[list[tuple[Span, ...]], list[EncodedInput]]:
        kind = self.model.record.definition
        if not isinstance(kind, SegmentKind):
            raise ConfigError(f"{self.path}: a {self.kind} model scores whole answers; expected one of segments")
        segmenter = shared_segmenter(self.model.record.named_segmenter)
        spans, parts = [], []
        for item in items:
            if item.marked is None:
                raise ConfigError(f"{self.path}: a {self.kind} model reads marked answers, and of {item.id!r} none is")
            text = item.answers[item.marked]
            spans.append(tuple(kind.cut(text, segmenter)))
            parts.append(kind.parts(item.question, item.passages, [text[start:end] for start, end in spans[-1]]))
        return spans, self.model.input_encoder(too_long="truncate").encode(parts)

    def _whole_inputs(self, answers: Sequence[tuple[AnsweredQuestion, str]]) -> list[EncodedInput]:
        kind = self.model.record.definition
        if not isinstance(kind, PairKind):
            raise ConfigError(f"{self.path}: a {self.kind} model labels segments; expected one of whole answers")
        parts = [kind.parts(item.question, item.passages, answer) for item, answer in answers]
        return self.model.input_encoder(too_long="truncate").encode(parts)
