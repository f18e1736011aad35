"""What each annotator's marks say of the units of an item, as the reward models will see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from finegrained_rlhf.annotation.adjudication import by_item
from finegrained_rlhf.annotation.annotations import Annotation
from finegrained_rlhf.annotation.items import AnnotationItem
from finegrained_rlhf.annotation.project import Project
from finegrained_rlhf.feedback.labels import SegmentRule
from finegrained_rlhf.feedback.records import Feedback
from finegrained_rlhf.text.segmentation import Segmenter

MISSING = "missing"
"""The unit "is anything missing from this answer?", beside the taxonomy's categories."""


@dataclass(frozen=True)
class JudgedItem:
    """An item with what its annotators said.

    Attributes:
        item: what was annotated.
        annotations: one an annotator, by name.
        labels: of each category, and of `MISSING` where it is asked for, every annotator's labels of the units: 1 has
            an error, 0 has none, None says nothing.
    """

    item: AnnotationItem
    annotations: Mapping[str, Annotation]
    labels: Mapping[str, Mapping[str, Sequence[int | None]]]


def judged_items(annotations: Sequence[Annotation], project: Project, segmenter: Segmenter) -> list[JudgedItem]:
    """The items of a project that somebody annotated, in the project's order."""
    annotated = by_item(annotations)
    rules = {name: SegmentRule.of_category(c, project.taxonomy) for name, c in project.taxonomy.categories.items()}
    return [
        _judged(project.items[name], annotated[name], project, rules, segmenter)
        for name in project.items
        if name in annotated
    ]


def _judged(
    item: AnnotationItem,
    judged: Sequence[Annotation],
    project: Project,
    rules: Mapping[str, SegmentRule],
    segmenter: Segmenter,
) -> JudgedItem:
    people = {one.annotator: one for one in judged}
    if item.marked is None:
        return JudgedItem(item, people, {})
    labels = {
        name: unit_labels(rule, item, {who: one.feedback() for who, one in people.items()}, segmenter)
        for name, rule in rules.items()
    }
    if project.taxonomy.missing and item.passages:
        labels[MISSING] = {who: [int(bool(one.missing))] for who, one in people.items()}
    return JudgedItem(item, people, labels)


def unit_labels(
    rule: SegmentRule, item: AnnotationItem, feedback: Mapping[str, Feedback], segmenter: Segmenter
) -> dict[str, Sequence[int | None]]:
    """Everybody's labels of the segments of an item's marked answer."""
    assert item.marked is not None
    text = item.answers[item.marked]
    return {who: rule.label(text, one, segmenter).labels for who, one in feedback.items()}
