"""Trained reward models as reward components: they satisfy `finegrained_rlhf.rewards`'s scorer protocol.

Weights are read in `setup`, not before. `start` launches all work on the device and waits for none of it, so that the
CPU can prepare the next component meanwhile.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

from finegrained_rlhf.core.errors import ConfigError, DataError, ModelError
from finegrained_rlhf.core.markers import ModelName, at_least, harmless
from finegrained_rlhf.core.records import Prompt, SegmentScores
from finegrained_rlhf.models.weights.files import check_tokenizer, read_model_files
from finegrained_rlhf.text.plain_text import TooLong
from finegrained_rlhf.text.segmentation import Segmenter, Span, look_ahead_of, shared_segmenter
from finegrained_rlhf.text.templates import PassageText
from reward_models.kinds import Kind, PairKind, SegmentKind
from reward_models.parts import InputParts
from reward_models.record import LEAST_STD, RewardModelRecord, error_label_ids, missing_record, read_reward_model_record

if TYPE_CHECKING:
    import torch

    from reward_models.encoders.inputs import EncodedInput, RewardInputEncoder
    from reward_models.encoders.models import RewardModel

logger = logging.getLogger(__name__)

Granularity = Literal["sub_sentence", "sentence"]


def question_of(prompt: Prompt) -> str:
    """The question behind a prompt.

    Raises:
        DataError: the prompt carries none.
    """
    question = prompt.metadata.get("question")
    if not isinstance(question, str):
        raise DataError("reward models need the question of each prompt", record=prompt.id, field="question")
    return question


def passages_of(prompt: Prompt) -> Sequence[PassageText]:
    """The passages behind a prompt.

    Raises:
        DataError: the prompt carries none, not even an empty list.
    """
    passages = prompt.metadata.get("passages")
    if passages is None:
        raise DataError(
            "this reward model reads the passages of each prompt", record=prompt.id, field="metadata.passages"
        )
    return list(passages)


def passages_for(kind: Kind, prompt: Prompt) -> Sequence[PassageText]:
    """The passages that a kind of model is shown; none are needed where it reads none.

    Raises:
        DataError: it reads them and the prompt carries none.
    """
    return passages_of(prompt) if kind.reads_passages else ()


def check_room(prompt: Prompt, encoder: RewardInputEncoder, shortest: InputParts, needed: int, model: str) -> None:
    """Require that a model's input has room for an answer behind the question.

    Args:
        prompt: to be answered.
        encoder: of the model.
        shortest: the input with the shortest answer.
        needed: tokens that this answer needs.
        model: what the error calls the model.

    Raises:
        DataError: it has not.
    """
    room = encoder.room(shortest)
    if room < needed:
        limit = encoder.max_length
        raise DataError(
            f"{model} reads at most {limit} tokens and needs {limit - room + needed} for the question and the shortest "
            "answer, so that no answer to this prompt can be judged",
            record=prompt.id,
            field="question",
        )


def _read_record(path: str, settings: Mapping[str, Any]) -> tuple[RewardModelRecord, dict[str, Any]]:
    """The record and the configuration of a reward model whose files are whole.

    Raises:
        ModelError: it is missing or damaged, or nothing says of which kind it is.
    """
    directory, config = read_model_files(path, ("model",))
    check_tokenizer(str(directory))
    kind = settings.get("kind")
    record = read_reward_model_record(directory) or (RewardModelRecord(kind) if kind else None)
    if record is None:
        raise missing_record(directory)
    return record, config


def _require_segment_model(path: str, record: RewardModelRecord, granularity: str | None) -> SegmentKind:
    kind = record.definition
    if not isinstance(kind, SegmentKind):
        raise ModelError(f"{path}: a {record.kind} model scores whole answers; use SequenceScorer")
    if granularity is not None and granularity != record.granularity:
        raise ModelError(
            f"{path}: a {record.kind} model labels each {record.granularity}, the configuration asks for {granularity}"
        )
    return kind


def _require_pair_model(path: str, record: RewardModelRecord) -> PairKind:
    kind = record.definition
    if not isinstance(kind, PairKind):
        raise ModelError(f"{path}: a {record.kind} model labels segments; use SegmentScorer")
    return kind


def check_segment_model(path: str, settings: Mapping[str, Any]) -> None:
    """Require what `SegmentScorer` reads, by the files alone; no weight is read.

    Args:
        path: model directory, or a run with a model.
        settings: of the scorer, as they are configured.

    Raises:
        ModelError: it is missing, damaged or of another kind than the settings say.
    """
    record, config = _read_record(path, settings)
    _require_segment_model(path, record, settings.get("granularity"))
    try:
        error_label_ids(config.get("id2label") or {})
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None


def check_pair_model(path: str, settings: Mapping[str, Any]) -> None:
    """Require what `SequenceScorer` reads; arguments and errors as of `check_segment_model`."""
    record, _ = _read_record(path, settings)
    _require_pair_model(path, record)


class _Scorer(ABC):
    """A reward model that is loaded at `setup`."""

    def __init__(
        self,
        path: ModelName,
        default: RewardModelRecord | None,
        batch_size: int,
        max_length: int | None,
        too_long: TooLong,
    ) -> None:
        if too_long not in get_args(TooLong):
            raise ConfigError(f"too_long must be truncate or refuse, got {too_long!r}")
        self.too_long = too_long
        if batch_size < 1 or (max_length is not None and max_length < 8):
            raise ConfigError(f"need batch_size >= 1 and max_length >= 8, got {batch_size} and {max_length}")
        self.path, self.batch_size, self.max_length = path, batch_size, max_length
        self._default = default
        self._model: RewardModel | None = None
        self._encoder: RewardInputEncoder | None = None

    def setup(self, device: torch.device | str = "cpu") -> None:
        """Read the model onto `device`.

        Raises:
            ModelError: it is missing, damaged or of another kind than the configuration says.
        """
        from reward_models.encoders.models import load_reward_model

        model = load_reward_model(self.path, self._default).to(device).eval()
        self._check(model)
        self._model, self._encoder = model, model.input_encoder(self.max_length, self.too_long)

    @abstractmethod
    def _check(self, model: RewardModel) -> None:
        """Raise ModelError unless the model is of a kind that this scorer can use."""

    @property
    def model(self) -> RewardModel:
        """The loaded model; the CPU's where `setup` was not called."""
        if self._model is None:
            self.setup("cpu")
        assert self._model is not None
        return self._model

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Refuse prompts that leave no room for an answer in the model's input. Called once, before the first `score`.

        Raises:
            DataError: a prompt lacks its question or passages, or its question is too long for the model.
        """
        model = self.model
        assert self._encoder is not None
        for prompt in prompts:
            check_room(prompt, self._encoder, *self._shortest(prompt), f"the {model.record.kind} model {self.path}")

    @abstractmethod
    def _shortest(self, prompt: Prompt) -> tuple[InputParts, int]:
        """The input of a prompt with the shortest answer, and the tokens that this answer needs."""

    def _encode(self, parts: Sequence[InputParts]) -> list[EncodedInput]:
        assert self.model is not None and self._encoder is not None
        return self._encoder.encode(parts)

    @abstractmethod
    def start(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> Callable[[], SegmentScores]:
        """Launch the scoring of R responses; the function that is returned waits for it.

        Raises:
            DataError: a prompt lacks its question or passages, or a response is longer than the model reads and
                `too_long` is `refuse`.
        """

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        """Start, and wait. Raises what `start` raises."""
        return self.start(prompts, responses)()


class SegmentScorer(_Scorer):
    """+1 for each segment that the model finds without error, −1 for each with one (thesis, section 6.3).

    A decoder-only model judges a segment by what stands before its end, so it does not read on (`reads_on`), as long as
    the whole response fits into its input beside the passages; an encoder reads on.

    Args:
        path: directory of a relevance or factuality model, or of the run that trained it, or a Hub name.
        granularity: `sub_sentence` or `sentence`; None takes the one that the model was trained on.
        segmenter: `rules`, a spaCy pipeline, or a segmenter of one's own; None takes the one of training.
        positive: reward of a segment without error; more than `negative`.
        negative: reward of a segment with one.
        batch_size: responses in one forward pass; batches are made of responses of similar length.
        max_length: longest input in tokens; None takes the model's.
        kind: of a model made elsewhere, which says nothing of itself: `relevance` or `factuality`.
        too_long: a response that does not fit into the model's input even without passages is scored without the end of
            its longest segments, counted and logged (`truncate`), or ends the run (`refuse`). Where a response has more
            segments than separators fit, the last segments are not scored and earn nothing.
    """

    input_checks: ClassVar[Mapping[str, Any]] = {"path": check_segment_model}

    def __init__(
        self,
        path: ModelName,
        granularity: Granularity | None = None,
        segmenter: str | Segmenter | None = None,
        positive: float = 1.0,
        negative: float = -1.0,
        batch_size: Annotated[int, at_least(1), harmless] = 32,
        max_length: int | None = None,
        kind: str | None = None,
        too_long: TooLong = "truncate",
    ) -> None:
        super().__init__(path, RewardModelRecord(kind) if kind else None, batch_size, max_length, too_long)
        if not negative < positive:
            raise ConfigError(f"positive must be more than negative, got {positive} and {negative}")
        if granularity not in (None, "sub_sentence", "sentence"):
            raise ConfigError(f"granularity must be sub_sentence, sentence or null, got {granularity!r}")
        self.granularity, self.positive, self.negative = granularity, positive, negative
        self.error_free_from = positive
        self.value_range: tuple[float, float] | None = (negative, positive)
        self._asked_segmenter = segmenter
        self._segmenter: Segmenter | None = None

    def _check(self, model: RewardModel) -> None:
        import torch

        from reward_models.encoders.models import is_causal

        self._kind = _require_segment_model(self.path, model.record, self.granularity)
        config = model.model.config
        wrong = error_label_ids(config.id2label)
        self._is_error = torch.tensor([i in wrong for i in range(config.num_labels)], device=model.device)
        segmenter = self._asked_segmenter or model.record.named_segmenter
        self._segmenter = shared_segmenter(segmenter) if isinstance(segmenter, str) else segmenter
        self.reads_on = not is_causal(config)
        density = self._kind.density
        self.look_ahead = (
            look_ahead_of(segmenter, density) if density == "sentence" or density == "sub_sentence" else None
        )

    def segments(self, response: str) -> list[Span]:
        """The segments of a response that the model labels."""
        assert self.model is not None and self._segmenter is not None
        return self._kind.cut(response, self._segmenter)

    def _parts(self, prompt: Prompt, response: str, spans: Sequence[Span]) -> InputParts:
        segments = [response[start:end] for start, end in spans]
        return self._kind.parts(question_of(prompt), passages_for(self._kind, prompt), segments)

    def _shortest(self, prompt: Prompt) -> tuple[InputParts, int]:
        return self._parts(prompt, ".", [(0, 1)]), 2

    def start(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> Callable[[], SegmentScores]:
        """Launch the scoring of each segment of each response; an empty response has none.

        Raises:
            DataError: a prompt lacks its question or passages, or a response is longer than the model reads and
                `too_long` is `refuse`.
        """
        import torch

        from reward_models.encoders.inputs import batches_by_length

        model, spans = self.model, [tuple(self.segments(response)) for response in responses]
        rows = [i for i, row_spans in enumerate(spans) if row_spans]
        inputs = self._encode([self._parts(prompts[i], responses[i], spans[i]) for i in rows])
        for i, item in zip(rows, inputs, strict=True):
            spans[i] = spans[i][: len(item.separators)]
        order: list[int] = []
        found: list[torch.Tensor] = []
        with torch.no_grad():
            for chosen, batch in batches_by_length(inputs, self.batch_size, model.pad_id, model.device):
                order += [rows[i] for i in chosen]
                found.append(self._worth(model.segment_logits(batch)))

        def collect() -> SegmentScores:
            worth = iter(torch.cat(found).tolist() if found else ())
            values: list[tuple[float, ...]] = [()] * len(responses)
            for i in order:
                values[i] = tuple(next(worth) for _ in spans[i])
            return SegmentScores(tuple(spans), tuple(values))

        return collect

    def _worth(self, logits: torch.Tensor) -> torch.Tensor:
        """The value of each segment, [S], by its logits [S, labels]."""
        import torch

        both = torch.tensor([self.positive, self.negative], dtype=torch.float64, device=logits.device)
        return both[self._is_error[logits.argmax(dim=-1)].long()]


class EditMassScorer(SegmentScorer):
    """Minus the words that a user would change in each segment, as the model expects them: −Σ_k k P(k words).

    Segments add up to minus the cost of an edit, so that drafts are ranked as their edits cost. The model is one of a
    category with `words_up_to`, which is what a response without a word costs, as the segment 0:0.

    Args:
        path: directory of the model, or of the run that trained it.
        segmenter: as for `SegmentScorer`.
        batch_size: as for `SegmentScorer`.
        max_length: as for `SegmentScorer`.
        too_long: as for `SegmentScorer`.
    """

    def __init__(
        self,
        path: ModelName,
        segmenter: str | Segmenter | None = None,
        batch_size: Annotated[int, at_least(1), harmless] = 32,
        max_length: int | None = None,
        too_long: TooLong = "truncate",
    ) -> None:
        super().__init__(path, None, segmenter, batch_size=batch_size, max_length=max_length, too_long=too_long)
        self.error_free_from, self.value_range = -0.5, None  # less than half a word is none

    def _check(self, model: RewardModel) -> None:
        super()._check(model)
        if not self._kind.words_up_to:
            raise ModelError(f"{self.path}: a {self._kind.name} model counts no words; use SegmentScorer")

    def start(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> Callable[[], SegmentScores]:
        """As for `SegmentScorer`; an empty response has a segment, too."""
        collect = super().start(prompts, responses)

        def with_empty() -> SegmentScores:
            scores, empty = collect(), -float(self._kind.words_up_to)
            spans = tuple(row or ((0, 0),) for row in scores.spans)
            return SegmentScores(spans, tuple(row or (empty,) for row in scores.values))

        return with_empty

    def _worth(self, logits: torch.Tensor) -> torch.Tensor:
        import torch

        counts = torch.arange(logits.shape[-1], device=logits.device, dtype=logits.dtype)
        return -(logits.softmax(dim=-1) * counts).sum(dim=-1)


class SequenceScorer(_Scorer):
    """One reward a response: ((R − mean) / std) · scale + bias, with R the model's raw score.

    Args:
        path: directory of a completeness or preference model, or of the run that trained it, or a Hub name.
        scale: factor of the standardised score.
        bias: added to it.
        mean: replaces the mean that is saved with the model; needed where none is saved.
        std: replaces the standard deviation; needed where none is saved.
        batch_size: responses in one forward pass; batches are made of responses of similar length.
        max_length: longest input in tokens; None takes the model's.
        kind: of a model made elsewhere, which says nothing of itself: `completeness` or `preference`.
        too_long: a response that does not fit into the model's input even without passages is scored without the end of
            its longest segments, counted and logged (`truncate`), or ends the run (`refuse`).
    """

    input_checks: ClassVar[Mapping[str, Any]] = {"path": check_pair_model}

    def __init__(
        self,
        path: ModelName,
        scale: float = 1.0,
        bias: float = 0.0,
        mean: float | None = None,
        std: float | None = None,
        batch_size: Annotated[int, at_least(1), harmless] = 32,
        max_length: int | None = None,
        kind: str | None = None,
        too_long: TooLong = "truncate",
    ) -> None:
        super().__init__(path, RewardModelRecord(kind) if kind else None, batch_size, max_length, too_long)
        if std is not None and std <= 0:
            raise ConfigError(f"std must be positive, got {std}")
        self.scale, self.bias, self._mean, self._std = scale, bias, mean, std

    def _check(self, model: RewardModel) -> None:
        record, kind = model.record, _require_pair_model(self.path, model.record)
        mean = self._mean if self._mean is not None else record.mean
        std = self._std if self._std is not None else record.std
        if mean is None or std is None:
            raise ModelError(f"{self.path}: no mean and std of its scores are saved with the model; set mean and std")
        if self._std is None and std < LEAST_STD:
            logger.warning(
                "%s: the raw scores of this %s model have a standard deviation of %.2g, so it has hardly learnt "
                "anything, and the standardised reward is made of rounding; train it anew, or set std",
                self.path,
                record.kind,
                std,
            )
        self.mean, self.std, self._kind = mean, std, kind

    def _shortest(self, prompt: Prompt) -> tuple[InputParts, int]:
        return self._kind.parts(question_of(prompt), passages_for(self._kind, prompt), ""), 1

    def start(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> Callable[[], SegmentScores]:
        """Launch the scoring of whole responses, one value each; an empty one is scored as an empty answer.

        Raises:
            DataError: a prompt lacks its question or passages, or a response is longer than the model reads and
                `too_long` is `refuse`.
        """
        from reward_models.encoders.models import start_raw_scores

        model = self.model
        inputs = self._encode(
            [
                self._kind.parts(question_of(prompt), passages_for(self._kind, prompt), response)
                for prompt, response in zip(prompts, responses, strict=True)
            ]
        )
        raw_scores = start_raw_scores(model, inputs, self.batch_size)

        def collect() -> SegmentScores:
            values = ((raw_scores().double() - self.mean) / self.std * self.scale + self.bias).tolist()
            spans = tuple(((0, len(response)),) for response in responses)
            return SegmentScores(spans, tuple((value,) for value in values), whole_response=True)

        return collect
