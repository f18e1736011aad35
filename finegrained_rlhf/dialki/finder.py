"""Finding the knowledge that the next answer rests on: dialogues and passages in, passage, spans and scores out.

An ensemble (thesis, footnote 7) averages the distributions of several trained DIALKIs.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Protocol

import torch
from torch import Tensor

from finegrained_rlhf.core.errors import ConfigError, ModelError
from finegrained_rlhf.dialki.inputs.batches import Chosen, DialkiBatch, collate, passages_to_search
from finegrained_rlhf.dialki.inputs.examples import EncodedExample, InputEncoder
from finegrained_rlhf.dialki.inputs.report import InputReport
from finegrained_rlhf.dialki.model.heads import MASKED, NextScores, Vectors
from finegrained_rlhf.dialki.model.model import DialkiModel, M, load_dialki
from finegrained_rlhf.dialki.model.search import SelectBy, passages_above
from finegrained_rlhf.dialki.model.spans import BestSpans, best_jointly, best_spans
from finegrained_rlhf.dialki.records import DialogueExample
from finegrained_rlhf.dialki.scores import Searched
from finegrained_rlhf.dialogue.records import Knowledge
from finegrained_rlhf.runtime.processes import Processes


@dataclass(frozen=True)
class Found:
    """What the next agent turn of one dialogue rests on.

    Attributes:
        id: of the dialogue.
        knowledge: passage (index into the dialogue's passages) and run of spans.
        text: its words.
        probability: of the passage, among `searched` alone; with Multi-Sentence that of its best sentence, with
            BERTQA that of its best answer among the n best.
        begin: probability of the first span, among the candidates of the passage.
        end: probability of the last one.
        score: of the run of spans: the sum of its begin and end probabilities, or logits; with `joint` of their
            log-probabilities and the passage's.
        passages: those above the threshold γ, most probable first; the best one alone where γ was not tuned.
        searched: the passages that were searched.
        probabilities: of each of them; they add up to 1 over these, whatever the others hold.
        coverage: how much of the dialogue's passages that is.
        logits: of each of them, that of its best part; empty where a system has none (BERTQA).
    """

    id: str
    knowledge: Knowledge
    text: str
    probability: float
    begin: float
    end: float
    score: float
    passages: tuple[int, ...]
    searched: tuple[int, ...]
    probabilities: tuple[float, ...]
    coverage: Searched
    logits: tuple[float, ...] = ()

    def scores(self, select_by: SelectBy) -> tuple[float, ...]:
        """What γ is compared with, of each passage that was searched: `logits` or what is made of them.

        Raises:
            ConfigError: the system has no logits of passages.
        """
        if select_by == "probabilities":
            return self.probabilities
        if not self.logits:
            raise ConfigError(f"select_by: BERTQA has no logits of passages, expected probabilities, got {select_by}")
        return self.logits if select_by == "logits" else tuple(torch.tensor(self.logits).double().sigmoid().tolist())

    def to_json(self, example: DialogueExample) -> dict[str, Any]:
        """One JSON object: the answer with the names of its passages, numbers to six digits."""

        def named(passage: int) -> dict[str, Any]:
            probability = self.probabilities[self.searched.index(passage)]
            source = example.passages[passage]
            return {"passage": passage, "id": source.id, "title": source.title, "probability": round(probability, 6)}

        known = self.knowledge
        return {
            "id": self.id,
            **{("passage_id" if key == "id" else key): value for key, value in named(known.passage).items()},
            "begin": known.begin,
            "end": known.end,
            "text": self.text,
            "begin_probability": round(self.begin, 6),
            "end_probability": round(self.end, 6),
            "score": round(self.score, 6),
            "passages": [named(passage) for passage in self.passages],
            **self.coverage.to_json(),
        }


class Encodes(Protocol):
    """Turns records into what a finder answers."""

    def encode(self, examples: Sequence[DialogueExample], training: bool = False) -> tuple[Sequence[Any], InputReport]:
        """The dialogues with their inputs (`record`, `document_length`, …), and what did not fit."""


class Finder(ABC, Generic[M]):
    """A trained model that answers dialogues: what `KnowledgeFinder` and that of BERTQA do alike.

    Args:
        model: trained; put on the device of `processes`.
        processes: device and precision; one process answers all that it is given.
        batch_size: dialogues that are encoded together.
        group_size: most inputs (passages, windows) that go through the encoder together.
    """

    def __init__(
        self, model: M, processes: Processes | None = None, batch_size: int = 16, group_size: int = 64
    ) -> None:
        self.processes = processes or Processes()
        self.model: M = model.to(self.processes.device).eval()
        self.batch_size, self.group_size = batch_size, group_size
        self.encoder = self.new_encoder(model)
        self.report = InputReport()

    @staticmethod
    @abstractmethod
    def new_encoder(model: M) -> Encodes:
        """What turns records into the model's inputs."""

    @abstractmethod
    def answer(self, items: Sequence[Any]) -> list[Found]:
        """The best knowledge of each dialogue that the encoder made."""

    def identify(self, examples: Sequence[DialogueExample]) -> list[Found]:
        """What the next agent turn of each dialogue rests on, in order.

        Raises:
            DataError: a dialogue has no span that fits into the model's input.
        """
        return [answer for batch in self.stream(examples) for answer in batch]

    def stream(self, examples: Sequence[DialogueExample]) -> Iterator[list[Found]]:
        """The same, batch by batch."""
        for start in range(0, len(examples), self.batch_size):
            encoded, report = self.encoder.encode(examples[start : start + self.batch_size])
            self.report += report
            yield self.answer(encoded)


class KnowledgeFinder(Finder[DialkiModel]):
    """A trained DIALKI, or Multi-Sentence, that answers dialogues."""

    @staticmethod
    def new_encoder(model: DialkiModel) -> InputEncoder:
        """The encoder of DIALKI's inputs."""
        return InputEncoder(model.tokenizer, model.config.inputs, model.config.units)

    @staticmethod
    def load(path: str | Path, processes: Processes | None = None, **options: int) -> KnowledgeFinder:
        """The finder of a model directory or run directory.

        Args:
            path: directory.
            processes: device and precision.
            options: `batch_size` and `group_size`.

        Raises:
            ModelError: there is no DIALKI; `dialki.training.systems.load_finder` opens BERTQA as well.
        """
        return KnowledgeFinder(load_dialki(path), processes, **options)

    @property
    def has_gates(self) -> bool:
        """Whether the model's vectors say how near each turn is to an input that is a passage with its spans."""
        return self.model.config.units == "passages"

    def answer(self, items: Sequence[EncodedExample]) -> list[Found]:
        """The best knowledge of each dialogue among its first passages (`search.max_passages`)."""
        limit = self.model.config.search.max_passages
        return self.search([passages_to_search(item, limit) for item in items])

    def search(self, chosen: Sequence[Chosen]) -> list[Found]:
        """The best knowledge of each dialogue among its chosen passages."""
        return self.read(chosen)[0]

    @torch.inference_mode()
    def read(self, chosen: Sequence[Chosen]) -> tuple[list[Found], Vectors, DialkiBatch]:
        """The same, with the vectors that the answers rest on and the tensors that went in."""
        batch = collate(chosen, self.model.pad_id, self.model.device, self.group_size)
        with self.processes.autocast():
            vectors, scores = self.scores(batch)
        return self._answers(chosen, scores, batch), vectors, batch

    def scores(self, batch: DialkiBatch) -> tuple[Vectors, NextScores]:
        """The vectors of a batch's inputs, and the logits of what its dialogues rest on."""
        vectors = self.model.encode(batch)
        return vectors, self.model.next_scores(vectors, batch)

    def _answers(self, chosen: Sequence[Chosen], scores: NextScores, batch: DialkiBatch) -> list[Found]:
        config = self.model.config.search
        of_passages = scores.passage.masked_fill(~batch.passage_mask, -torch.inf)
        passages = of_passages.softmax(dim=1)
        joint = config.score_by == "joint"
        if joint:
            logs = of_passages.log_softmax(dim=1)
            best, spans = best_jointly(logs, scores.begin, scores.end, scores.span_mask, config.max_spans)
        else:
            best = passages.argmax(dim=1)
        rows = torch.arange(len(best), device=best.device)
        mask = scores.span_mask[rows, best]
        logits = [part[rows, best].masked_fill(~mask, -torch.inf) for part in (scores.begin, scores.end)]
        begin, end = (part.softmax(dim=1) for part in logits)
        if not joint:
            parts = (begin, end) if config.score_by == "probabilities" else (logits[0], logits[1])
            spans = best_spans(*parts, mask, config.max_spans)
        if not bool(torch.isfinite(passages).all() & torch.isfinite(spans.score).all()):
            raise ModelError("the model's scores are not finite; its weights are damaged or its precision is too low")
        ends = begin[rows, spans.begin], end[rows, spans.end]
        return self._records(chosen, of_passages, passages, best, spans, *ends)

    def _records(
        self,
        chosen: Sequence[Chosen],
        logits: torch.Tensor,
        passages: torch.Tensor,
        best: torch.Tensor,
        spans: BestSpans,
        begin: torch.Tensor,
        end: torch.Tensor,
    ) -> list[Found]:
        columns = (logits, passages, best, spans.begin, spans.end, spans.score, begin, end)
        search, threshold = self.model.config.search, self.model.config.threshold
        answers = []
        for item, (of_passages, row, place, first, last, score, of_first, of_last) in zip(
            chosen, zip(*(column.tolist() for column in columns), strict=True), strict=True
        ):
            whole, known = item.example.whole, Knowledge(item.passages[place], first, last)
            known = known if whole is None else whole.back(known)
            best_of: dict[int, tuple[float, float]] = {}  # of each passage of the record: those of its best part
            for passage, *pair in zip(item.passages, of_passages, row, strict=False):
                owner = item.example.owner(passage, known)
                best_of[owner] = max((pair[0], pair[1]), best_of.get(owner, (-math.inf, 0.0)))
            searched = tuple(best_of)
            answer = Found(
                id=item.example.example.id,
                knowledge=known,
                text=item.example.record.text_of(known),
                probability=row[place],
                begin=of_first,
                end=of_last,
                score=score,
                passages=(),
                searched=searched,
                probabilities=tuple(probability for _, probability in best_of.values()),
                coverage=_coverage(item, item.example.passages_searched(searched)),
                logits=tuple(logit for logit, _ in best_of.values()),
            )
            above = passages_above(answer.scores(search.select_by), threshold, search.most, searched)
            answers.append(replace(answer, passages=above))
        return answers


def _coverage(chosen: Chosen, passages: int) -> Searched:
    """What a search among the chosen passages of a dialogue covers; `passages` of its record are among them."""
    record = chosen.example.record
    return Searched(
        passages=passages,
        total_passages=len(record.passages),
        spans=sum(chosen.example.spans_searched(passage) for passage in chosen.passages),
        total_spans=sum(len(passage.spans) for passage in record.passages),
    )


class EnsembleFinder(KnowledgeFinder):
    """Several trained DIALKIs, or Multi-Sentences, that answer as one.

    The distributions over passages and, within each passage, over first and last spans are averaged; the answer is
    chosen from the means as a single model's is. How it is chosen (`search`) and γ are those of the first model; a
    `score_by` of logits adds the logarithms of the means. Answers have no gates: those belong to one model.

    Args:
        models: trained on the same inputs, at least one; all on the device of `processes`.
        processes: device and precision.
        options: `batch_size` and `group_size`.

    Raises:
        ConfigError: the models do not read alike, or γ is compared with logits, of which a mean has none.
    """

    def __init__(self, models: Sequence[DialkiModel], processes: Processes | None = None, **options: int) -> None:
        for number, model in enumerate(models[1:], start=2):
            _require_alike(models[0], model, number)
        if models[0].config.search.select_by != "probabilities":
            raise ConfigError(
                "ensemble: γ of the first model is compared with logits, which a mean of distributions has not; "
                "expected dialki.search.select_by=probabilities"
            )
        super().__init__(models[0], processes, **options)
        self.models = [self.model, *(model.to(self.processes.device).eval() for model in models[1:])]

    @property
    def has_gates(self) -> bool:
        """Never: gates are of one model."""
        return False

    def scores(self, batch: DialkiBatch) -> tuple[Vectors, NextScores]:
        """The first model's vectors, and the logarithms of the mean distributions as logits."""
        read = [model.encode(batch) for model in self.models]
        scores = [model.next_scores(vectors, batch) for model, vectors in zip(self.models, read, strict=True)]
        return read[0], mean_scores(scores)


def mean_scores(scores: Sequence[NextScores]) -> NextScores:
    """Logits whose softmax is the mean of the models' distributions: log (1/K Σ_k p_k) (thesis, footnote 7).

    Args:
        scores: of K models for the same batch: passage [N, M], begin and end [N, M, S], with the same masks.
    """
    first = scores[0]
    return NextScores(
        _log_mean([one.passage for one in scores], first.passage_mask),
        _log_mean([one.begin for one in scores], first.span_mask),
        _log_mean([one.end for one in scores], first.span_mask),
        first.passage_mask,
        first.span_mask,
    )


def _log_mean(logits: Sequence[Tensor], mask: Tensor) -> Tensor:
    """Log of the mean softmax over the last axis of K tensors [..., S]; `MASKED` where the mask [..., S] is False."""
    logs = torch.stack([part.float().masked_fill(~mask, MASKED).log_softmax(-1) for part in logits])
    return (logs.logsumexp(0) - math.log(len(logits))).masked_fill(~mask, MASKED)


def _require_alike(first: DialkiModel, other: DialkiModel, number: int) -> None:
    """Raise ConfigError where two models of an ensemble do not make the same inputs of a dialogue."""
    for what, firsts, others in (
        ("dialki.inputs", first.config.inputs, other.config.inputs),
        ("dialki.units", first.config.units, other.config.units),
    ):
        if firsts != others:
            raise ConfigError(f"ensemble: model {number} has other {what} than the first: {others} and {firsts}")
    if _reading(first.tokenizer) != _reading(other.tokenizer):
        raise ConfigError(f"ensemble: model {number} has another tokenizer than the first, expected the same one")


def _reading(tokenizer: Any) -> Any:
    """What decides which ids a text gets; how a tokenizer pads and cuts does not."""
    if not getattr(tokenizer, "is_fast", False):
        return type(tokenizer).__name__, tokenizer.get_vocab()
    record = json.loads(tokenizer.backend_tokenizer.to_str())
    return {name: value for name, value in record.items() if name not in ("padding", "truncation")}
