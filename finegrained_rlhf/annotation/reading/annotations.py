"""What one annotator said of one item, checked; and the file of such annotations, a JSON object a line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finegrained_rlhf.annotation.project.project import Project
from finegrained_rlhf.core.checks import get_field, require, require_text
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_jsonl, write_jsonl
from finegrained_rlhf.feedback.records import Feedback, MissingInfo, SpanError


@dataclass(frozen=True)
class Annotation:
    """What one annotator said of one item.

    Attributes:
        item: its id.
        annotator: who.
        tool: in which tool.
        guideline_version: under which guidelines.
        seconds: time it took, where the tool says.
        answer: index of the marked answer in the item's own order; None where answers were only compared.
        order: the answer at each shown place.
        errors: marked spans, in order; empty where there is no error.
        missing: what is missing; empty where nothing is.
        correction: the corrected answer; None where nobody was asked.
        preferences: of each pair of the item's answers, in the order of `pair_order`, as in `FeedbackRecord`; empty
            where nobody was asked.
        ranking: groups of answers (indices in the item's own order), the best first, where the tool asks for a ranking.
        suggestions_shown: how many spans a model suggested.
        suggestions_accepted: how many of them became marks.
        skipped: whether the annotator passed the item by: it then says nothing.
    """

    item: str
    annotator: str
    tool: str
    guideline_version: str
    seconds: float | None
    answer: int | None
    order: tuple[int, ...]
    errors: tuple[SpanError, ...] = ()
    missing: tuple[MissingInfo, ...] = ()
    correction: str | None = None
    preferences: tuple[int | None, ...] = ()
    ranking: tuple[tuple[int, ...], ...] | None = None
    suggestions_shown: int = 0
    suggestions_accepted: int = 0
    skipped: bool = False

    def feedback(self) -> Feedback:
        """As feedback on the marked answer."""
        return Feedback(self.errors, self.missing, self.correction, (self.annotator,))


def annotation_row(one: Annotation) -> dict[str, Any]:
    """The JSON object of an annotation."""
    return {
        "item": one.item,
        "annotator": one.annotator,
        "tool": one.tool,
        "guideline_version": one.guideline_version,
        "seconds": one.seconds,
        "answer": one.answer,
        "order": list(one.order),
        "errors": [
            {
                "start": error.start,
                "end": error.end,
                "type": error.error_type,
                "evidence": [list(place) for place in error.evidence],
                "note": error.explanation,
            }
            for error in one.errors
        ],
        "missing": [
            {"type": gap.error_type, "passage": gap.passage_id, "sentences": list(gap.sentence_ids)}
            for gap in one.missing
        ],
        "correction": one.correction,
        "preferences": list(one.preferences),
        "ranking": None if one.ranking is None else [list(group) for group in one.ranking],
        "suggestions_shown": one.suggestions_shown,
        "suggestions_accepted": one.suggestions_accepted,
        "skipped": one.skipped,
    }


def _parse(row: Mapping[str, Any]) -> Annotation:
    ranking = get_field(row, "ranking")
    return Annotation(
        item=require_text(get_field(row, "item"), "item"),
        annotator=require_text(get_field(row, "annotator"), "annotator"),
        tool=require_text(get_field(row, "tool"), "tool"),
        guideline_version=get_field(row, "guideline_version"),
        seconds=row.get("seconds"),
        answer=get_field(row, "answer"),
        order=tuple(get_field(row, "order")),
        errors=tuple(
            SpanError(error["start"], error["end"], error["type"], error["note"], tuple(map(tuple, error["evidence"])))
            for error in get_field(row, "errors")
        ),
        missing=tuple(
            MissingInfo(gap["type"], gap["passage"], tuple(gap["sentences"])) for gap in get_field(row, "missing")
        ),
        correction=get_field(row, "correction"),
        preferences=tuple(get_field(row, "preferences")),
        ranking=None if ranking is None else tuple(map(tuple, ranking)),
        suggestions_shown=row.get("suggestions_shown", 0),
        suggestions_accepted=row.get("suggestions_accepted", 0),
        skipped=row.get("skipped", False),
    )


def write_annotations(path: str | Path, annotations: Iterable[Annotation]) -> None:
    """Write annotations, one JSON object a line."""
    write_jsonl(path, (annotation_row(one) for one in annotations))


def annotations_of(path: str | Path, project: Project) -> list[Annotation]:
    """Read annotations of a project's items; skipped ones are left out.

    Raises:
        DataError: a row is damaged, names an item or an annotator that the project does not have, is of other
            guidelines, or says again what an annotator said of an item.
    """
    read: dict[tuple[str, str], Annotation] = {}
    for number, row in enumerate(read_jsonl(path)):
        try:
            one = _parse(row)
            require(one.item in project.items, f"item {one.item!r} is not of this project", "item")
            version = project.guideline_version
            require(one.guideline_version == version, f"expected {version}, other guidelines", "guideline_version")
            require((one.item, one.annotator) not in read, f"{one.annotator!r} twice on {one.item!r}", "annotator")
        except (KeyError, TypeError) as error:
            raise DataError(f"not an annotation ({error})", file=path, record=number) from None
        except DataError as error:
            raise error.at(file=path, record=number) from None
        read[one.item, one.annotator] = one
    return [one for one in read.values() if not one.skipped]
