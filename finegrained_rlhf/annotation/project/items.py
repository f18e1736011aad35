"""Items: a question with answers, and what is asked about them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from finegrained_rlhf.core.checks import as_index, as_list, get_field, require, require_text, text_list
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.labels import Suggestion
from finegrained_rlhf.feedback.outputs import passages_of_lists, passages_to_lists

Role = Literal["single", "overlap", "qualification"]
"""Whether one annotator sees an item, all do, or all do first and it has an answer that is known to be right."""


@dataclass(frozen=True)
class AnnotationItem:
    """One question with its answers.

    Attributes:
        id: unique in a project.
        question: the question.
        passages: with their sentences; may be empty.
        answers: N ≥ 1, none empty, in the item's own order.
        reference: a human answer, where there is one.
        marked: index of the answer whose errors are marked; None where answers are only compared.
        role: who sees it.
        strategy: what chose the item; "random" or the name of a strategy.
        probability: with which it was chosen, in (0, 1].
        suggestions: spans that a model suggests in the marked answer.
    """

    id: str
    question: str
    passages: tuple[Passage, ...]
    answers: tuple[str, ...]
    reference: str | None = None
    marked: int | None = 0
    role: Role = "single"
    strategy: str = "random"
    probability: float = 1.0
    suggestions: tuple[Suggestion, ...] = ()

    def __post_init__(self) -> None:
        require_text(self.id, "id")
        require_text(self.question, "question")
        require(len(self.answers) > 0, "expected at least one answer, got none", "answers")
        for i, answer in enumerate(self.answers):
            require_text(answer, f"answers[{i}]")
        marked = self.marked is None or 0 <= self.marked < len(self.answers)
        require(marked, f"there is no answer {self.marked}", "marked")
        require(self.role in get_args(Role), f"expected one of {', '.join(get_args(Role))}, got {self.role!r}", "role")
        require(0 < self.probability <= 1, f"expected more than 0 and at most 1, got {self.probability}", "probability")

    @property
    def digest(self) -> str:
        """A hash of what people are shown, white space included: it tells whether a tool changed it."""
        shown = [self.question, passages_to_lists(self.passages), list(self.answers), self.reference]
        text = json.dumps(shown, ensure_ascii=True)
        return hashlib.blake2b(text.encode("ascii"), digest_size=8).hexdigest()

    def without_suggestions(self) -> AnnotationItem:
        """The same item with nothing suggested."""
        return replace(self, suggestions=())


def item_row(item: AnnotationItem) -> dict[str, Any]:
    """The JSON object of an item."""
    return {
        "id": item.id,
        "question": item.question,
        "passages": passages_to_lists(item.passages),
        "answers": list(item.answers),
        "reference": item.reference,
        "marked": item.marked,
        "role": item.role,
        "strategy": item.strategy,
        "probability": item.probability,
        "suggestions": [suggestion_row(one) for one in item.suggestions],
    }


def suggestion_row(one: Suggestion) -> dict[str, Any]:
    """The JSON object of a suggestion, as tools are given it."""
    names = {"start": one.start, "end": one.end, "type": one.error_type}
    return {**names, "score": one.score, "model_version": one.model_version}


def parse_item(row: Mapping[str, Any]) -> AnnotationItem:
    """The inverse of `item_row`. Raises DataError with the field."""
    return AnnotationItem(
        id=require_text(get_field(row, "id"), "id"),
        question=require_text(get_field(row, "question"), "question"),
        passages=passages_of_lists(get_field(row, "passages")),
        answers=tuple(text_list(get_field(row, "answers"), "answers")),
        reference=row.get("reference"),
        marked=None if row.get("marked") is None else as_index(row["marked"], "marked"),
        role=row.get("role", "single"),
        strategy=require_text(row.get("strategy", "random"), "strategy"),
        probability=row.get("probability", 1.0),
        suggestions=tuple(_suggestions(as_list(row.get("suggestions", []), "suggestions"))),
    )


def _suggestions(rows: Sequence[Any]) -> list[Suggestion]:
    return [Suggestion(row["start"], row["end"], row["type"], row["score"], row["model_version"]) for row in rows]
