"""Projects and exports that annotation tests build: items of feedback records, and what people would export of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from finegrained_rlhf.annotation.items import AnnotationItem
from finegrained_rlhf.annotation.project import EXPORT_FORMAT, Project, assign
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.records import FIRST, SECOND, FeedbackRecord, pair_order
from finegrained_rlhf.feedback.taxonomy import QA_FEEDBACK, Taxonomy

LAKE = Passage("", "The lake 🌊", ("It is three kilometres wide.", "Its water  stays cold.", "هي باردة."))
ANSWER = "The lake 🌊 is wide, and 👩‍👩‍👧 swim.\r\nIts  water stays warm. هي دافئة جدا اليوم في كل مكان."
OTHER = "It is three kilometres wide."


def item(name: str = "q1", answers: tuple[str, ...] = (ANSWER, OTHER), **changes: Any) -> AnnotationItem:
    return replace(AnnotationItem(name, "What is the lake like?", (LAKE,), answers), **changes)


def project(
    items: Sequence[AnnotationItem] = (item(),), people: Sequence[str] = ("ann",), taxonomy: Taxonomy = QA_FEEDBACK
) -> Project:
    return Project("toy", taxonomy, {one.id: one for one in items}, assign(items, people, 0))


def task(of: Project, annotator: str, name: str, **changes: Any) -> dict[str, Any]:
    """A finished task with no error, nothing missing, the answer as its own correction and all answers equal."""
    payload = next(one for one in of.payload(annotator)["tasks"] if one["item"] == name)
    made: dict[str, Any] = {key: payload[key] for key in ("item", "hash", "order", "marked")}
    made |= {"status": "done", "seconds": 12.5, "spans": [], "no_error": True, "missing": [], "nothing_missing": True}
    marked = payload["marked"]
    made |= {"correction": None if marked is None else payload["answers"][marked]}
    made |= {"ranking": [list(range(len(payload["answers"])))]}
    return {**made, "suggestions": {"shown": 0, "accepted": 0, "refused": 0}, **changes}


def span(text: str, piece: str, kind: str, **changes: Any) -> dict[str, Any]:
    start = text.index(piece)
    made = {"start": start, "end": start + len(piece), "text": piece, "type": kind, "evidence": [], "note": ""}
    return {**made, **changes}


def export(of: Project, annotator: str, tasks: Sequence[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    return {
        "format": EXPORT_FORMAT,
        "project": of.name,
        "annotator": annotator,
        "guideline_version": of.guideline_version,
        "taxonomy": of.taxonomy.name,
        "tasks": list(tasks),
        **changes,
    }


def ranking_of(preferences: Sequence[int | None], answers: int) -> list[list[int]] | None:
    """The ranking with ties that says exactly these preferences; None where there is none."""
    wins = [0] * answers
    for (i, j), value in zip(pair_order(answers), preferences, strict=True):
        wins[i] += value == FIRST
        wins[j] += value == SECOND
    losses = [0] * answers
    for (i, j), value in zip(pair_order(answers), preferences, strict=True):
        losses[j] += value == FIRST
        losses[i] += value == SECOND
    score = [won - lost for won, lost in zip(wins, losses, strict=True)]
    groups = [[i for i in range(answers) if score[i] == best] for best in sorted(set(score), reverse=True)]
    place = {answer: n for n, group in enumerate(groups) for answer in group}
    said = tuple(
        0 if place[i] == place[j] else FIRST if place[i] < place[j] else SECOND for i, j in pair_order(answers)
    )
    return groups if said == tuple(preferences) else None


def items_of(records: Sequence[FeedbackRecord]) -> list[AnnotationItem]:
    return [AnnotationItem(r.id, r.question, r.passages, r.predictions, r.gold) for r in records]


def record_task(of: Project, annotator: str, record: FeedbackRecord) -> dict[str, Any]:
    """What a person exports who marks exactly what a record holds."""
    made = task(of, annotator, record.id)
    feedback, text, order = record.feedback, record.predictions[0], made["order"]
    assert feedback is not None
    made["spans"] = [
        {
            "start": error.start,
            "end": error.end,
            "text": text[error.start : error.end],
            "type": error.error_type,
            "evidence": [],
            "note": error.explanation,
        }
        for error in feedback.errors
    ]
    made["no_error"] = not feedback.errors
    made["missing"] = [
        {"type": gap.error_type, "passage": gap.passage_id, "sentences": list(gap.sentence_ids)}
        for gap in feedback.missing_info
    ]
    made["nothing_missing"] = not feedback.missing_info
    made["correction"] = feedback.corrected_prediction
    shown = [record.preferences[pair_order(4).index((min(a, b), max(a, b)))] for a, b in _pairs(order)]
    turned = [
        value if a < b or not value else (FIRST if value == SECOND else SECOND)
        for value, (a, b) in zip(shown, _pairs(order), strict=True)
    ]
    made["ranking"] = None if of.taxonomy.comparison == "pairs" else ranking_of(turned, 4)
    if made["ranking"] is None:
        made["preferences"] = turned
    return made


def _pairs(order: Sequence[int]) -> list[tuple[int, int]]:
    return [(order[i], order[j]) for i, j in pair_order(len(order))]
