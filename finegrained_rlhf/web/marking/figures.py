"""What a project's finished marks say: agreement, people who drift, what each rule of merging would keep, and records.

Everything is measured by the functions of `finegrained measure-agreement` and `finegrained adjudicate`; what a person
has not finished enters nothing.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, cast

import sqlalchemy as sql

from finegrained_rlhf.annotation.adjudication import How, adjudicated
from finegrained_rlhf.annotation.agreement_figures import (
    JudgedItem,
    agreement_figures,
    judged_items,
    shared,
    unit_labels,
)
from finegrained_rlhf.annotation.annotations import Annotation, disjoint
from finegrained_rlhf.annotation.annotator_model import Believed, believed_errors
from finegrained_rlhf.annotation.items import AnnotationItem
from finegrained_rlhf.annotation.project import Project
from finegrained_rlhf.annotation.reading import Imported, import_export
from finegrained_rlhf.core.checks import require
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.feedback.labels import SegmentRule
from finegrained_rlhf.feedback.records import Feedback, FeedbackRecord, MissingInfo, SpanError
from finegrained_rlhf.metrics.agreement import percent_agreement
from finegrained_rlhf.report.charts.svg import sparkline
from finegrained_rlhf.text.segmentation import DEFAULT_SEGMENTER, shared_segmenter
from finegrained_rlhf.web.marking.store import decisions, text_of
from finegrained_rlhf.web.marking.work import Work

RULES = {
    "majority": "more than half of those who saw it (of two: both)",
    "union": "at least one",
    "intersection": "all",
    "dawid_skene": "whom a model of annotators (Dawid–Skene) believes",
    "drawn": "one of them, drawn by the item",
}
"""When a marked segment stays where several people saw it."""
DRAWS = 200
"""Resamples of the items for the intervals of the live page."""
LATELY = 10
"""Items that count as lately; as many are needed before them."""
_ALARM_P = 0.01


@dataclass(frozen=True)
class Measured:
    """A project's figures at one moment.

    Attributes:
        judged: the items that somebody finished, with their labels.
        figures: as `finegrained measure-agreement` writes them.
        problems: finished tasks that break a rule and are left out, a line each.
        when: of each (item, annotator) when it was last changed.
        believed: what a model of annotators believes; None where crowd-kit is not installed.
    """

    judged: Sequence[JudgedItem]
    figures: Mapping[str, Any]
    problems: Sequence[str]
    when: Mapping[tuple[str, str], float]
    believed: Believed | None


def finished(work: Work, key: str, project: Project) -> tuple[list[Annotation], list[str]]:
    """What is finished, read as `finegrained read-annotations` reads it; and what is refused, a line each."""
    made, problems = Imported(), []
    for name in project.annotators:
        export = work.export(key, name, drafts=False)
        for task in export["tasks"]:
            try:
                import_export({**export, "tasks": [task]}, project, "page", False, made)
            except DataError as error:
                problems.append(str(error))
    return [one for one in made.annotations if not one.skipped], problems


def measured(work: Work, key: str, project: Project, draws: int = DRAWS) -> Measured:
    """Everything at once; qualification items count in nobody's agreement with the others."""
    segmenter = shared_segmenter(DEFAULT_SEGMENTER)
    done, problems = finished(work, key, project)
    judged = judged_items(done, project, segmenter)
    counted = [one for one in judged if one.item.role != "qualification"]
    figures = agreement_figures(counted, project, draws, 0, {})
    when = {(item, who): at for who, items in work.states(key).items() for item, (_, at) in items.items()}
    counts = {one.item.id for one in counted}
    try:
        believed = believed_errors(
            project.items, [one for one in done if one.item in counts], project.taxonomy, segmenter
        )
    except ConfigError:
        believed = None
    return Measured(judged, figures, problems, when, believed)


def of_person(judged: JudgedItem, name: str) -> float | None:
    """The share of an item's units, of all kinds, on which somebody agrees with the others."""
    own: list[int | None] = []
    other: list[int | None] = []
    for labels in judged.labels.values():
        for who, theirs in labels.items():
            if who != name and name in labels:
                own += labels[name]
                other += theirs
    return percent_agreement(own, other)


def over_time(made: Measured, name: str) -> list[float]:
    """Somebody's agreement with the others on each shared item, in the order in which the items were finished."""
    items = [one for one in shared(made.judged) if name in one.annotations]
    items.sort(key=lambda one: made.when[one.item.id, name])
    return [value for one in items if (value := of_person(one, name)) is not None]


def drifts(values: Sequence[float]) -> bool:
    """Whether the last `LATELY` values are surely lower than those before (Mann–Whitney, one-sided, p < 0.01)."""
    before, lately = values[:-LATELY], values[-LATELY:]
    if len(before) < LATELY or len(set(values)) < 2:
        return False
    from scipy.stats import mannwhitneyu

    return bool(mannwhitneyu(lately, before, alternative="less", method="asymptotic").pvalue < _ALARM_P)


def people(made: Measured, project: Project) -> list[dict[str, Any]]:
    """A row a person: figures, the course of agreement (means of the last `LATELY` items) as a line, and alarms."""
    rows = []
    for row in made.figures["annotators"]:
        name = row["annotator"]
        course = over_time(made, name)
        pace = [one.annotations[name] for one in made.judged if name in one.annotations]
        pace.sort(key=lambda one: made.when[one.item, name])
        seconds = [one.seconds for one in pace if one.seconds is not None]
        alarms = [word for word, fell in (("agrees less", course), ("works faster", seconds)) if drifts(fell)]
        lately = fmean(course[-LATELY:]) if course else None
        drawn = sparkline([*enumerate(fmean(course[max(0, n - LATELY) : n]) for n in range(1, len(course) + 1))])
        mean = fmean(course) if course else None
        rows.append({**row, "agreement": mean, "lately": lately, "course": drawn, "alarms": alarms})
    return rows


def densities(made: Measured, project: Project) -> list[dict[str, Any]]:
    """What each rule keeps: marks an item where one person looked, and where several did."""
    segmenter, rows = shared_segmenter(DEFAULT_SEGMENTER), []
    items = [one for one in made.judged if one.item.role != "qualification" and one.item.marked is not None]
    single = [one for one in items if len(one.annotations) == 1]
    several = shared(items)

    def marked(of: Sequence[JudgedItem], rule: str) -> float | None:
        counts = []
        for one in of:
            record = _adjudicated(one, project, rule, made.believed)
            feedback = record.marked[one.item.marked or 0]
            rules = [SegmentRule.of_category(c, project.taxonomy) for c in project.taxonomy.categories.values()]
            labels = [unit_labels(rule, one.item, {"": feedback}, segmenter)[""] for rule in rules]
            counts.append(sum(label == 1 for row in labels for label in row))
        return fmean(counts) if counts else None

    for rule, words in RULES.items():
        if rule == "dawid_skene" and made.believed is None:
            continue
        rows.append({"rule": rule, "words": words, "single": marked(single, rule), "several": marked(several, rule)})
    return rows


def decided(work: Work, key: str) -> dict[str, Mapping[str, Any]]:
    """The last decision on each item: `reviewer`, `at` and `decision`."""
    query = sql.select(decisions).where(decisions.c.project == key).order_by(decisions.c.seq)
    return {row["item"]: {**row, "decision": json.loads(row["decision"])} for row in work.store.rows(query)}


def marks_of(judged: JudgedItem) -> list[dict[str, Any]]:
    """Every mark and every missing sentence that anybody made, once, with who made it; in the order of the text."""
    made: dict[tuple[Any, ...], dict[str, Any]] = {}
    for who, one in judged.annotations.items():
        for error in one.errors:
            place = (0, error.start, error.end, error.error_type)
            mark = made.setdefault(place, {"error": error, "gap": None, "people": []})
            mark["people"].append(who)
        for gap in one.missing:
            for sentence in gap.sentence_ids:
                place = (1, gap.passage_id, sentence, gap.error_type)
                gap_here = MissingInfo(gap.error_type, gap.passage_id, (sentence,))
                made.setdefault(place, {"error": None, "gap": gap_here, "people": []})["people"].append(who)
    return [{"id": "-".join(map(str, place)), **mark} for place, mark in sorted(made.items())]


def decide(work: Work, key: str, judged: JudgedItem, reviewer: str, given: Mapping[str, Any]) -> None:
    """Keep what a reviewer says of each mark; earlier decisions stay in the log.

    Args:
        work: the projects.
        key: of the project.
        judged: the item as it is now.
        reviewer: who decides.
        given: `marks`, of each mark's id whether it `stays` and the `reason`; `correction`, whose stays; `seen`, the
            ids that were shown.

    Raises:
        DataError: a mark came or went meanwhile, or nothing is said of one; nothing is kept then.
    """
    known = [mark["id"] for mark in marks_of(judged)]
    same = sorted(given["seen"]) == sorted(known) and set(given["marks"]) == set(known)
    require(same, "the marks changed meanwhile: look again", "marks")
    require(given["correction"] in judged.annotations, "expected the name of one who marked it", "correction")
    row = {"project": key, "item": judged.item.id, "reviewer": reviewer}
    with work.store.writing() as connection:
        connection.execute(sql.insert(decisions).values(**row, at=time.time(), decision=text_of(dict(given))))


def _adjudicated(judged: JudgedItem, project: Project, rule: str, believed: Believed | None) -> FeedbackRecord:
    people_of_item, segmenter = list(judged.annotations.values()), shared_segmenter(DEFAULT_SEGMENTER)
    how = cast(How, rule)
    return adjudicated(judged.item, people_of_item, project.taxonomy, segmenter, how, believed)


def record_of(
    judged: JudgedItem, project: Project, rule: str, believed: Believed | None, decision: Mapping[str, Any] | None
) -> FeedbackRecord:
    """The feedback record of an item: by a reviewer's decision where there is one that still fits, else by the rule."""
    record = _adjudicated(judged, project, rule, believed)
    marks = marks_of(judged)
    if decision is None or judged.item.marked is None or set(decision["decision"]["marks"]) != {m["id"] for m in marks}:
        return record
    said, reviewer = decision["decision"], decision["reviewer"]
    kept: list[SpanError] = []
    dropped: list[SpanError] = []
    gaps: list[MissingInfo] = []
    for mark in marks:
        answer = said["marks"][mark["id"]]
        if mark["error"] is not None:
            reason = answer["reason"] or mark["error"].explanation
            error = replace(mark["error"], annotators=(*mark["people"], reviewer), explanation=reason)
            (kept if answer["stays"] else dropped).append(error)
        elif answer["stays"]:
            gaps.append(replace(mark["gap"], annotators=(*mark["people"], reviewer)))
    chosen = judged.annotations[said["correction"]].correction
    names = (*judged.annotations, reviewer)
    feedback = Feedback(_disjoint(kept, judged.item, project), tuple(gaps), chosen, names, tuple(dropped))
    more = {judged.item.marked: feedback} if judged.item.marked else {}
    return replace(record, feedback=record.feedback and feedback, more_feedback=more)


def _disjoint(kept: Sequence[SpanError], item: AnnotationItem, project: Project) -> tuple[SpanError, ...]:
    return disjoint(kept, item.answers[item.marked or 0], project.taxonomy, False, Counter())


def records(work: Work, key: str, project: Project, made: Measured) -> list[FeedbackRecord]:
    """One record an item that somebody finished, qualification items left out."""
    rule, said = work.row(key)["rule"], decided(work, key)
    counted = [one for one in made.judged if one.item.role != "qualification"]
    return [record_of(one, project, rule, made.believed, said.get(one.item.id)) for one in counted]
