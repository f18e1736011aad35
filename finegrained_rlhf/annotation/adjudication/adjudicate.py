"""Making feedback records of annotations: what `finegrained adjudicate` runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from finegrained_rlhf.annotation.adjudication.votes import How, adjudicated, by_item
from finegrained_rlhf.annotation.project.items import AnnotationItem
from finegrained_rlhf.annotation.project.project import Project
from finegrained_rlhf.annotation.reading.annotations import Annotation, annotations_of
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import InputFile, OutputFile
from finegrained_rlhf.feedback.reading import write_feedback
from finegrained_rlhf.feedback.records import Feedback, FeedbackRecord
from finegrained_rlhf.text.segmentation import DEFAULT_SEGMENTER, SpacySegmenter

Adjudication = Literal["majority", "union", "intersection", "expert"]


@dataclass(frozen=True, kw_only=True)
class Adjudicate(Settings):
    """Write one feedback record an item, of what its annotators said. Qualification items are left out.

    Attributes:
        annotations: JSON lines of annotations (`finegrained read-annotations`).
        tasks: directory of the project.
        output: feedback FILE for `finegrained train-reward-model`.
        how: `majority` (more than half of the annotators of an item mark a segment), `union`, `intersection`, or
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
        by_name = by_item(annotations_of(self.annotations, project))
        segmenter, records, several = SpacySegmenter(self.segmenter), [], 0
        for item in project.items.values():
            if item.id not in by_name or item.role == "qualification":
                continue
            several += len(by_name[item.id]) > 1
            record = self._record(item, by_name[item.id], project, segmenter)
            if record is not None:
                records.append(record if self.provenance else without_provenance(record))
        if not records:
            raise DataError("holds no annotation to make a record of", file=self.annotations)
        write_feedback(self.output, records)
        print(f"{len(records)} records, {several} of them of several annotators -> {self.output}")
        return records

    def _record(
        self, item: AnnotationItem, of_item: Sequence[Annotation], project: Project, segmenter: SpacySegmenter
    ) -> FeedbackRecord | None:
        how: How = "majority" if self.how == "expert" else self.how
        own = [one for one in of_item if one.annotator == self.expert]
        return adjudicated(item, own or of_item, project.taxonomy, segmenter, how)


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
