"""Making feedback records of annotations: what `finegrained adjudicate` runs.

Marks of several people are made one by votes on segments, on passage sentences and on pairs of answers.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from finegrained_rlhf.annotation.annotations import Annotation, annotations_of, disjoint
from finegrained_rlhf.annotation.annotator_model import Believed, believed_errors
from finegrained_rlhf.annotation.items import AnnotationItem
from finegrained_rlhf.annotation.project import Project
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import InputFile, OutputFile
from finegrained_rlhf.feedback.labels import SegmentRule
from finegrained_rlhf.feedback.reading import write_feedback
from finegrained_rlhf.feedback.records import Feedback, FeedbackRecord, MissingInfo, SpanError, pair_order
from finegrained_rlhf.feedback.taxonomy import Taxonomy
from finegrained_rlhf.metrics.agreement import correction_f1
from finegrained_rlhf.text.segmentation import DEFAULT_SEGMENTER, Segmenter, SpacySegmenter

How = Literal["majority", "union", "intersection", "dawid_skene", "drawn"]
"""A mark stays where more than half, one, or all of the annotators mark its segment, where a model of annotators
believes in it, or where the one who is drawn by the item's id made it."""


def enough(votes: int, people: int, how: How) -> bool:
    """Whether so many votes of so many people carry; what the model says nothing of is decided by more than half."""
    how = "majority" if how == "dawid_skene" else how
    return votes * 2 > people if how == "majority" else votes > 0 if how == "union" else votes == people


def adjudicated(
    item: AnnotationItem,
    annotations: Sequence[Annotation],
    taxonomy: Taxonomy,
    segmenter: Segmenter,
    how: How,
    believed: Believed | None = None,
) -> FeedbackRecord:
    """The record of an item that several people annotated, or one.

    One person's annotation is taken as it is, unless a model of annotators decides. Of several, each category votes on
    its own segments: of a segment that carries, what people marked in it stays, as far as it lies in segments that
    carry; of types that fall together the one with most votes, of equal ones the taxonomy's first. All other marks go
    to `dropped`. Every mark names who made it.

    Args:
        item: what was annotated.
        annotations: of it, one an annotator, at least one.
        taxonomy: of the project.
        segmenter: cuts answers as reward models will.
        how: what carries.
        believed: what the model of annotators believes, for `dawid_skene` (`believed_errors`).
    """
    feedback = None
    if how == "drawn":  # items that several saw have the errors of one person then, as items of one person have
        annotations = [random.Random(item.id).choice(sorted(annotations, key=lambda one: one.annotator))]
    if item.marked is not None:
        text = item.answers[item.marked]
        as_it_is = len(annotations) == 1 and how != "dawid_skene"
        mine = (believed or {}).get(item.id, {}) if how == "dawid_skene" else {}
        feedback = _own(annotations[0]) if as_it_is else _voted(text, annotations, taxonomy, segmenter, how, mine)
    return FeedbackRecord(
        id=item.id,
        question=item.question,
        passages=item.passages,
        predictions=item.answers,
        feedback=feedback if item.marked == 0 else None,
        preferences=voted_preferences(annotations, len(item.answers)),
        gold=item.reference,
        more_feedback={item.marked: feedback} if item.marked and feedback is not None else {},
    )


def _own(annotation: Annotation) -> Feedback:
    who = (annotation.annotator,)
    errors = tuple(replace(error, annotators=who) for error in annotation.errors)
    missing = tuple(replace(gap, annotators=who) for gap in annotation.missing)
    return Feedback(errors, missing, annotation.correction, who)


def _voted(
    text: str,
    annotations: Sequence[Annotation],
    taxonomy: Taxonomy,
    segmenter: Segmenter,
    how: How,
    believed: Mapping[tuple[str, int], bool],
) -> Feedback:
    people = tuple(one.annotator for one in annotations)
    marks = [replace(error, annotators=(one.annotator,)) for one in annotations for error in one.errors]
    kept: list[SpanError] = []
    dropped: list[SpanError] = []
    for category in taxonomy.categories.values():
        rule = SegmentRule.of_category(category, taxonomy)
        ours = [mark for mark in marks if mark.error_type in category.types]
        known = {place: error for (name, place), error in believed.items() if name == category.name}
        kept_here, dropped_here = _of_category(text, ours, rule.cut(text, segmenter), len(people), how, known)
        kept += kept_here
        dropped += dropped_here
    return Feedback(
        disjoint(kept, text, taxonomy, strict=False, repairs=Counter()),
        voted_missing(annotations, taxonomy, how),
        central_correction(annotations),
        people,
        tuple(dropped),
    )


def _of_category(
    text: str,
    marks: Sequence[SpanError],
    segments: Sequence[tuple[int, int]],
    people: int,
    how: How,
    believed: Mapping[int, bool],
) -> tuple[list[SpanError], list[SpanError]]:
    """What of a category's marks lies in segments that carry, and what does not."""
    kept: list[SpanError] = []
    dropped: list[SpanError] = []
    for place, (start, end) in enumerate(segments):
        here = [part for mark in marks if (part := _clipped(mark, start, end, text)) is not None]
        carries = enough(len({name for part in here for name in part.annotators}), people, how)
        if here and believed.get(place, carries):
            votes = Counter(part.error_type for part in here)
            best = max(votes, key=lambda name: votes[name])
            kept += [replace(part, error_type=best) for part in here]
        else:
            dropped += here
    return _joined(kept, text), dropped


def _clipped(mark: SpanError, start: int, end: int, text: str) -> SpanError | None:
    """The part of a mark inside a segment, trimmed; None where there is nothing of it but white space."""
    begin, stop = max(mark.start, start), min(mark.end, end)
    body = text[begin:stop] if begin < stop else ""
    if not body.strip():
        return None
    return replace(mark, start=begin + len(body) - len(body.lstrip()), end=begin + len(body.rstrip()))


def _joined(parts: Sequence[SpanError], text: str) -> list[SpanError]:
    """Parts with the parts of one type that they overlap, or from which white space alone parts them, made one."""
    joined: list[SpanError] = []
    for part in sorted(parts, key=lambda one: (one.start, one.end)):
        last = joined[-1] if joined else None
        near = last is not None and not text[last.end : part.start].strip()
        if last is not None and near and last.error_type == part.error_type:
            joined[-1] = replace(
                last,
                end=max(last.end, part.end),
                explanation="; ".join(dict.fromkeys(note for note in (last.explanation, part.explanation) if note))
                or last.explanation,
                evidence=tuple(dict.fromkeys((*last.evidence, *part.evidence))),
                annotators=tuple(dict.fromkeys((*last.annotators, *part.annotators))),
            )
        else:
            joined.append(part)
    return joined


def voted_missing(annotations: Sequence[Annotation], taxonomy: Taxonomy, how: How) -> tuple[MissingInfo, ...]:
    """The passage sentences that carry, each with the type of most votes (of equal ones the taxonomy's first)."""
    types: dict[tuple[int, int], Counter[str]] = {}
    names: dict[tuple[int, int], list[str]] = {}
    for one in annotations:
        error_types = {(gap.passage_id, s): gap.error_type for gap in one.missing for s in gap.sentence_ids}
        for place, name in error_types.items():
            types.setdefault(place, Counter())[name] += 1
            names.setdefault(place, []).append(one.annotator)
    ranks = list(taxonomy.missing)
    return tuple(
        MissingInfo(
            min(types[place], key=lambda name: (-types[place][name], ranks.index(name))),
            place[0],
            (place[1],),
            tuple(names[place]),
        )
        for place in sorted(types)
        if enough(len(names[place]), len(annotations), how)
    )


def central_correction(annotations: Sequence[Annotation]) -> str | None:
    """The correction that is nearest to the others (highest mean word F1; of equal ones the first)."""
    corrections = [one.correction for one in annotations if one.correction is not None]
    if not corrections:
        return None
    return max(corrections, key=lambda text: sum(correction_f1(text, other) for other in corrections))


def voted_preferences(annotations: Sequence[Annotation], answers: int) -> tuple[int | None, ...]:
    """Of each pair what more than half of those say who compared; None where no value has so many."""
    judgements = [one.preferences for one in annotations if one.preferences]
    preferred: list[int | None] = []
    for pair in range(len(pair_order(answers)) if judgements else 0):
        value, votes = Counter(row[pair] for row in judgements).most_common(1)[0]
        preferred.append(value if votes * 2 > len(judgements) else None)
    return tuple(preferred)


def by_item(annotations: Sequence[Annotation]) -> Mapping[str, list[Annotation]]:
    """Annotations of each item, in their order."""
    grouped: dict[str, list[Annotation]] = {}
    for one in annotations:
        grouped.setdefault(one.item, []).append(one)
    return grouped


Adjudication = Literal["majority", "union", "intersection", "dawid_skene", "drawn", "expert"]


@dataclass(frozen=True, kw_only=True)
class Adjudicate(Settings):
    """Write one feedback record an item, of what its annotators said. Qualification items are left out.

    Attributes:
        annotations: JSON lines of annotations (`finegrained read-annotations`).
        tasks: directory of the project.
        output: feedback FILE for `finegrained train-reward-model`.
        how: `majority` (more than half of the annotators of an item mark a segment), `union`, `intersection`,
            `dawid_skene` (a model of annotators believes in it, on items of one person too; needs crowd-kit), `drawn`
            (what one of them says who is drawn by the item's id: errors are as frequent as on items of one person), or
            `expert`: what one person says, where there is an annotation of hers, else as `majority`.
        expert: the name of that person.
        provenance: whether the records name who made each mark, and hold the marks that were dropped; without, they
            have the fields of QA-FEEDBACK alone.
        segmenter: cuts answers as the reward models will.
    """

    annotations: InputFile
    tasks: InputFile
    output: OutputFile
    how: Adjudication = "majority"
    expert: InputFile | None = None
    provenance: bool = True
    segmenter: str = DEFAULT_SEGMENTER

    def __post_init__(self) -> None:
        if (self.how == "expert") != (self.expert is not None):
            raise ConfigError("how=expert and expert=NAME belong together")

    def run(self) -> list[FeedbackRecord]:
        """Adjudicate and write; prints one line.

        Raises:
            DataError: the annotations are damaged or not of this project, or none is left.
        """
        project = Project.read(self.tasks)
        if self.expert is not None and self.expert not in project.annotators:
            raise ConfigError(f"expert: project {project.name} has no annotator {self.expert!r}")
        done = annotations_of(self.annotations, project)
        by_name = by_item(done)
        segmenter, records, several = SpacySegmenter(self.segmenter), [], 0
        believed: Believed = {}
        if self.how == "dawid_skene":
            believed = believed_errors(project.items, done, project.taxonomy, segmenter)
        for item in project.items.values():
            if item.id not in by_name or item.role == "qualification":
                continue
            several += len(by_name[item.id]) > 1
            record = self._record(item, by_name[item.id], project, segmenter, believed)
            if record is not None:
                records.append(record if self.provenance else without_provenance(record))
        if not records:
            raise DataError("holds no annotation to make a record of", file=self.annotations)
        write_feedback(self.output, records)
        print(f"{len(records)} records, {several} of them of several annotators -> {self.output}")
        return records

    def _record(
        self,
        item: AnnotationItem,
        of_item: Sequence[Annotation],
        project: Project,
        segmenter: SpacySegmenter,
        believed: Believed,
    ) -> FeedbackRecord | None:
        how: How = "majority" if self.how == "expert" else self.how
        own = [one for one in of_item if one.annotator == self.expert]
        return adjudicated(item, own or of_item, project.taxonomy, segmenter, how, believed)


def without_provenance(record: FeedbackRecord) -> FeedbackRecord:
    """The record with nobody named and no dropped marks."""

    def plain(feedback: Feedback) -> Feedback:
        errors = tuple(replace(error, annotators=()) for error in feedback.errors)
        missing = tuple(replace(gap, annotators=()) for gap in feedback.missing_info)
        return Feedback(errors, missing, feedback.corrected_prediction)

    return replace(
        record,
        feedback=None if record.feedback is None else plain(record.feedback),
        more_feedback={i: plain(feedback) for i, feedback in record.more_feedback.items()},
    )
