"""What one annotator said of one item, checked; the file of such annotations, a JSON object a line; and marked spans.

A marked span lies in our text by offsets, in other units, or by its words; overlapping spans are made one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from finegrained_rlhf.annotation.project import Project
from finegrained_rlhf.core.checks import get_field, require, require_text
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_jsonl, write_jsonl
from finegrained_rlhf.feedback.records import Feedback, MissingInfo, SpanError
from finegrained_rlhf.feedback.taxonomy import Taxonomy


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


def located(text: str, start: int, end: int, quoted: str, repairs: Counter[str]) -> tuple[int, int]:
    """The span of `quoted` in `text`, trimmed of white space; what had to be repaired is counted.

    Tried in turn: the offsets as they are, as UTF-16 units, and the only place where `quoted` stands when runs of white
    space count as one. Nothing is guessed: where several places are possible, none is taken.

    Raises:
        DataError: no place, or more than one, or nothing but white space.
    """
    if text[max(start, 0) : max(end, 0)] != quoted:
        start, end = _located(text, start, end, quoted, repairs)
    body = text[start:end]
    if not body.strip():
        raise DataError("the span covers no text", field="start")
    trimmed = start + len(body) - len(body.lstrip()), end - len(body) + len(body.rstrip())
    if trimmed != (start, end):
        repairs["white space trimmed"] += 1
    return trimmed


def _located(text: str, start: int, end: int, quoted: str, repairs: Counter[str]) -> tuple[int, int]:
    units = utf16_offsets(text)
    if start in units and end in units and text[units[start] : units[end]] == quoted:
        repairs["offsets in UTF-16 units"] += 1
        return units[start], units[end]
    words = quoted.split()
    if not words:
        raise DataError("the span covers no text", field="text")
    pattern = r"\s+".join(map(re.escape, words))
    places = [place.span() for place in re.finditer(f"(?={pattern})", text)]
    if len(places) != 1:
        many = "stands in no place of the answer" if not places else f"stands in {len(places)} places of the answer"
        there = text[max(start, 0) : max(end, 0)]
        raise DataError(f"the answer has {there!r} there, and {quoted!r} {many}", field="text")
    match = re.compile(pattern).match(text, places[0][0])
    assert match is not None
    repairs["found by its words"] += 1
    return match.span()


def utf16_offsets(text: str) -> dict[int, int]:
    """From offsets in UTF-16 units to offsets in characters; the middle of a pair of units has none."""
    offsets, units = {0: 0}, 0
    for place, character in enumerate(text, start=1):
        units += 2 if ord(character) > 0xFFFF else 1
        offsets[units] = place
    return offsets


def disjoint(
    spans: Sequence[SpanError], text: str, taxonomy: Taxonomy, strict: bool, repairs: Counter[str]
) -> tuple[SpanError, ...]:
    """Spans none of which overlap: of one category they are united, of two the first category's stays whole.

    United spans have the type of the longest of them (of equal ones the first), the evidence of all, and the notes of
    all. What is left of a span of a later category outside an earlier one stays, if it is more than white space.

    Args:
        spans: inside `text`, trimmed.
        text: the answer.
        taxonomy: its categories in order of precedence.
        strict: refuse what overlaps.
        repairs: counts what was done.

    Raises:
        DataError: `strict`, and two spans overlap.
    """
    same = _without_duplicates(spans, repairs)
    kept: list[SpanError] = []
    for rank in range(len(taxonomy.categories)):
        ours = [span for span in same if taxonomy.rank(span.error_type) == rank]
        united = _united(sorted(ours, key=lambda span: (span.start, span.end)), strict, repairs)
        kept += [part for span in united for part in _outside(span, kept, text, strict, repairs)]
    first = {(span.start, span.end, span.error_type): place for place, span in enumerate(same)}
    last = len(same)
    return tuple(sorted(kept, key=lambda s: (first.get((s.start, s.end, s.error_type), last), s.start)))


def _without_duplicates(spans: Sequence[SpanError], repairs: Counter[str]) -> list[SpanError]:
    distinct = list(dict.fromkeys(spans))
    repairs["duplicates merged"] += len(spans) - len(distinct)
    return distinct


def _united(spans: Sequence[SpanError], strict: bool, repairs: Counter[str]) -> list[SpanError]:
    groups: list[list[SpanError]] = []
    for span in spans:
        if groups and span.start < max(one.end for one in groups[-1]):
            if strict:
                other = groups[-1][-1]
                raise DataError(f"spans {other.start}:{other.end} and {span.start}:{span.end} overlap", field="spans")
            repairs["overlapping spans of one category united"] += 1
            groups[-1].append(span)
        else:
            groups.append([span])
    return [_one(group) if len(group) > 1 else group[0] for group in groups]


def _one(group: Sequence[SpanError]) -> SpanError:
    longest = max(group, key=lambda span: span.end - span.start)
    notes = list(dict.fromkeys(span.explanation for span in group if span.explanation))
    return replace(
        longest,
        start=min(span.start for span in group),
        end=max(span.end for span in group),
        explanation="; ".join(notes) if notes else longest.explanation,
        evidence=tuple(dict.fromkeys(place for span in group for place in span.evidence)),
        annotators=tuple(dict.fromkeys(name for span in group for name in span.annotators)),
    )


def _outside(
    span: SpanError, earlier: Sequence[SpanError], text: str, strict: bool, repairs: Counter[str]
) -> list[SpanError]:
    covered = sorted((one.start, one.end) for one in earlier if one.start < span.end and one.end > span.start)
    if not covered:
        return [span]
    if strict:
        raise DataError(f"span {span.start}:{span.end} overlaps {covered[0][0]}:{covered[0][1]}", field="spans")
    repairs["cut by a category of precedence"] += 1
    parts, start = [], span.start
    for begin, end in [*covered, (span.end, span.end)]:
        body = text[start : max(start, min(begin, span.end))]
        if body.strip():
            first = start + len(body) - len(body.lstrip())
            parts.append(replace(span, start=first, end=start + len(body.rstrip())))
        start = max(start, end)
    return parts
