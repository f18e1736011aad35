"""A component of a bottleneck as a reward: it satisfies `finegrained_rlhf.rewards`'s scorer protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.markers import ModelName
from finegrained_rlhf.core.records import Prompt, SegmentScores
from finegrained_rlhf.text.segmentation import Span, look_ahead_of
from reward_models.kinds import KINDS, PairKind
from reward_models.scorers import passages_of, question_of

if TYPE_CHECKING:
    import torch

    from reward_models.bottleneck.model import Bottleneck


def check_bottleneck(path: str, settings: Mapping[str, Any]) -> None:
    """Require what `BottleneckScorer` reads of its directory; the encoder is opened at `setup`.

    Raises:
        ModelError: it is missing or damaged.
    """
    from reward_models.bottleneck.model import read_bottleneck

    read_bottleneck(path)


class BottleneckScorer:
    """1 − 2 P(error) for each segment (relevance, factuality), or the standardised score of a whole answer.

    A segment's value depends on it and on segments before it alone (`reads_on`). Scorers of one directory share their
    encoder, and what they have read of a question. An answer without words says nothing that is needed: of a whole
    answer it is scored as such, and a component of segments has no value for it.

    Args:
        path: directory of a bottleneck, or of the run that trained it.
        component: relevance (sub-sentences), factuality (sentences), completeness or preference (whole answers).
        model: the `Bottleneck` itself, where it is there already; no path is read then.
    """

    input_checks: ClassVar[Mapping[str, Any]] = {"path": check_bottleneck}
    error_free_from = 0.0
    reads_on = False

    def __init__(self, path: ModelName, component: str, model: Any = None) -> None:
        if component not in KINDS:
            raise ConfigError(f"component must be one of {', '.join(KINDS)}, got {component!r}")
        self.path, self.component = path, component
        self._whole = isinstance(KINDS[component], PairKind)
        self.value_range = None if self._whole else (-1.0, 1.0)
        self.look_ahead: int | None = None
        self._given: Bottleneck | None = model
        self._model = self._given

    def setup(self, device: torch.device | str = "cpu") -> None:
        """Read heads and encoder onto `device`.

        Raises:
            ModelError: they are missing or damaged, or the encoder is another one than in training.
        """
        from reward_models.bottleneck.model import load_bottleneck

        self._model = self._given or load_bottleneck(str(self.path), device)
        density = KINDS[self.component].density
        if density == "sentence" or density == "sub_sentence":
            self.look_ahead = look_ahead_of(self._model.segmenter, density)

    @property
    def model(self) -> Bottleneck:
        """The loaded model; the CPU's where `setup` was not called."""
        if self._model is None:
            self.setup()
        assert self._model is not None
        return self._model

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Refuse prompts without a question or passages.

        Raises:
            DataError: there is one.
        """
        for prompt in prompts:
            question_of(prompt), passages_of(prompt)

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        """Score R responses.

        Raises:
            DataError: a prompt lacks its question or passages.
        """
        model = self.model
        spans: list[tuple[Span, ...]] = []
        values: list[tuple[float, ...]] = []
        for prompt, response in zip(prompts, responses, strict=True):
            source = model.source(question_of(prompt), passages_of(prompt))
            if self._whole:
                mean, std = model.record.moments[self.component]
                spans.append(((0, len(response)),))
                values.append(((model.score(self.component, source, response) - mean) / std,))
            else:
                cut = model.cut(self.component, response)
                wrong = model.errors(self.component, source, [response[start:end] for start, end in cut])
                spans.append(tuple(cut))
                values.append(tuple((1 - 2 * wrong).tolist()))
        return SegmentScores(tuple(spans), tuple(values), whole_response=self._whole)
