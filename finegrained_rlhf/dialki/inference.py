"""Finding the knowledge that the next answer rests on: dialogues and passages in, passage, spans and scores out.

Knows a trained model and its records. Does not know gold labels or metrics.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from finegrained_rlhf.core.errors import ModelError
from finegrained_rlhf.dialki.batches import Chosen, DialkiBatch, collate, passages_to_search
from finegrained_rlhf.dialki.heads import NextScores
from finegrained_rlhf.dialki.inputs import InputEncoder, InputReport
from finegrained_rlhf.dialki.model import DialkiModel, load_dialki
from finegrained_rlhf.dialki.records import DialogueExample, Knowledge
from finegrained_rlhf.dialki.search import BestSpans, best_spans, passages_above
from finegrained_rlhf.runtime.processes import Processes


@dataclass(frozen=True)
class Found:
    """What the next agent turn of one dialogue rests on.

    Attributes:
        id: of the dialogue.
        knowledge: passage (index into the dialogue's passages) and run of spans.
        text: its words.
        probability: of the passage, among those searched.
        begin: probability of the first span, among the candidates of the passage.
        end: probability of the last one.
        score: of the run of spans: the sum of its begin and end probabilities, or logits.
        passages: those above the threshold γ, most probable first; the best one alone where γ was not tuned.
        searched: the passages that were searched.
        probabilities: of each of them.
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
        }


class KnowledgeFinder:
    """A trained DIALKI that answers dialogues.

    Args:
        model: trained; put on the device of `processes`.
        processes: device and precision; one process answers all that it is given.
        batch_size: dialogues that are encoded together.
        group_size: most inputs (passages) that go through the encoder together.
    """

    def __init__(
        self, model: DialkiModel, processes: Processes | None = None, batch_size: int = 16, group_size: int = 64
    ) -> None:
        self.processes = processes or Processes()
        self.model = model.to(self.processes.device).eval()
        self.batch_size, self.group_size = batch_size, group_size
        self.encoder = InputEncoder(model.tokenizer, model.config.inputs)
        self.report = InputReport()

    @staticmethod
    def load(path: str | Path, processes: Processes | None = None, **options: int) -> KnowledgeFinder:
        """The finder of a model directory or run directory.

        Args:
            path: directory.
            processes: device and precision.
            options: `batch_size` and `group_size`.

        Raises:
            ModelError: there is no DIALKI.
        """
        return KnowledgeFinder(load_dialki(path), processes, **options)

    def identify(self, examples: Sequence[DialogueExample]) -> list[Found]:
        """What the next agent turn of each dialogue rests on, in order.

        Raises:
            DataError: a dialogue has no span that fits into the model's input.
        """
        return [found for batch in self.stream(examples) for found in batch]

    def stream(self, examples: Sequence[DialogueExample]) -> Iterator[list[Found]]:
        """The same, batch by batch."""
        for start in range(0, len(examples), self.batch_size):
            encoded, report = self.encoder.encode(examples[start : start + self.batch_size])
            self.report += report
            limit = self.model.config.search.max_passages
            yield self.search([passages_to_search(item, limit) for item in encoded])

    @torch.inference_mode()
    def search(self, chosen: Sequence[Chosen]) -> list[Found]:
        """The best knowledge of each dialogue among its chosen passages."""
        batch = collate(chosen, self.model.pad_id, self.model.device, self.group_size)
        with self.processes.autocast():
            scores = self.model.next_scores(self.model.encode(batch), batch)
        return self._answers(chosen, scores, batch)

    def _answers(self, chosen: Sequence[Chosen], scores: NextScores, batch: DialkiBatch) -> list[Found]:
        passages = scores.passage.masked_fill(~batch.passage_mask, -torch.inf).softmax(dim=1)
        best = passages.argmax(dim=1)
        rows = torch.arange(len(best), device=best.device)
        mask = scores.span_mask[rows, best]
        logits = [part[rows, best].masked_fill(~mask, -torch.inf) for part in (scores.begin, scores.end)]
        begin, end = (part.softmax(dim=1) for part in logits)
        config = self.model.config.search
        found = (
            best_spans(begin, end, mask, config.max_spans)
            if config.score_by == "probabilities"
            else best_spans(logits[0], logits[1], mask, config.max_spans)
        )
        if not bool(torch.isfinite(passages).all() & torch.isfinite(found.score).all()):
            raise ModelError("the model's scores are not finite; its weights are damaged or its precision is too low")
        return self._records(chosen, passages, best, found, begin[rows, found.begin], end[rows, found.end])

    def _records(
        self,
        chosen: Sequence[Chosen],
        passages: torch.Tensor,
        best: torch.Tensor,
        found: BestSpans,
        begin: torch.Tensor,
        end: torch.Tensor,
    ) -> list[Found]:
        columns = (passages, best, found.begin, found.end, found.score, begin, end)
        config = self.model.config
        answers = []
        for item, (row, place, first, last, score, of_first, of_last) in zip(
            chosen, zip(*(column.tolist() for column in columns), strict=True), strict=True
        ):
            example = item.example.example
            known = Knowledge(item.passages[place], first, last)
            probabilities = tuple(row[: len(item.passages)])
            above = passages_above(probabilities, config.threshold, config.search.most, item.passages)
            answers.append(
                Found(
                    id=example.id,
                    knowledge=known,
                    text=example.text_of(known),
                    probability=row[place],
                    begin=of_first,
                    end=of_last,
                    score=score,
                    passages=above,
                    searched=item.passages,
                    probabilities=probabilities,
                )
            )
        return answers
