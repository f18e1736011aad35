"""What each annotator's marks say of the units of an item, and how far annotators agree on it.

Labels, spans, missing sentences, corrections and rankings.

Where more than two people annotate an item, percent and κ are means over pairs of people, weighted by the units that
both judge; α takes all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, combinations
from statistics import fmean, median
from typing import Any, TypeVar

from finegrained_rlhf.annotation.adjudication import by_item
from finegrained_rlhf.annotation.annotations import Annotation
from finegrained_rlhf.annotation.items import AnnotationItem
from finegrained_rlhf.annotation.project import Project
from finegrained_rlhf.feedback.labels import SegmentRule
from finegrained_rlhf.feedback.records import Feedback
from finegrained_rlhf.metrics.agreement import (
    MatchCounts,
    bootstrap_interval,
    character_matches,
    cohen_kappa,
    correction_f1,
    exact_matches,
    krippendorff_alpha,
    matches_by_type,
    mean_kendall_tau_b,
    order_bias,
    overlap_matches,
    percent_agreement,
    pooled_f1,
    prevalence,
    set_matches,
)
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


Items = Sequence[JudgedItem]
Labels = Sequence[int | None]
T = TypeVar("T")


def people_of(items: Items) -> list[str]:
    """Everybody who annotated one of them, sorted."""
    return sorted({name for judged in items for name in judged.annotations})


def shared(items: Items) -> list[JudgedItem]:
    """The items that more than one person annotated."""
    return [judged for judged in items if len(judged.annotations) > 1]


def _pairs(items: Items) -> Iterator[tuple[str, str, list[JudgedItem]]]:
    for first, second in combinations(people_of(items), 2):
        both = [one for one in items if first in one.annotations and second in one.annotations]
        if both:
            yield first, second, both


def _of_pairs(items: Items, unit: str, formula: Callable[[Labels, Labels], float | None]) -> float | None:
    total, weight = 0.0, 0
    for first, second, both in _pairs(items):
        labels = [label for one in both for label in one.labels.get(unit, {}).get(first, ())]
        other = [label for one in both for label in one.labels.get(unit, {}).get(second, ())]
        value = formula(labels, other)
        units = sum(a is not None and b is not None for a, b in zip(labels, other, strict=True))
        if value is not None and units:
            total, weight = total + value * units, weight + units
    return total / weight if weight else None


def _alpha(items: Items, unit: str) -> float | None:
    people, rows = people_of(items), []
    for name in people:
        row: list[int | None] = []
        for one in items:
            known = one.labels.get(unit, {})
            width = len(next(iter(known.values()), ()))
            row += known.get(name, (None,) * width)
        rows.append(row)
    return krippendorff_alpha(rows)


def agreement_figures(
    items: Items, project: Project, draws: int, seed: int, known: Mapping[str, Mapping[str, Labels]]
) -> dict[str, Any]:
    """All figures of a project, the annotators' last.

    Args:
        items: of the project.
        project: whose categories are the kinds of unit.
        draws: resamples of the items for the intervals.
        seed: of the resampling.
        known: of qualification items, the labels that are known to be right, by kind of unit.
    """
    return {
        "project": project.name,
        "items": len(items),
        "annotated_by_several": len(shared(items)),
        "labels": label_agreement(items, [*project.taxonomy.categories, MISSING], draws, seed),
        "spans": span_agreement(items, draws, seed),
        **other_agreement(items, {one.item.id: one.item.answers[one.item.marked or 0] for one in items}),
        "annotators": by_annotator(items, known) if items else [],
    }


def label_agreement(items: Items, units: Sequence[str], draws: int, seed: int) -> dict[str, Any]:
    """Percent, κ and α of each kind of unit with 95% intervals over items, and how often an error is said."""
    formulas: dict[str, Callable[[Items, str], float | None]] = {
        "percent": lambda rows, unit: _of_pairs(rows, unit, percent_agreement),
        "kappa": lambda rows, unit: _of_pairs(rows, unit, cohen_kappa),
        "alpha": _alpha,
    }
    agreement: dict[str, Any] = {}
    for unit in units:
        rows = [one for one in shared(items) if unit in one.labels]
        if not rows:
            continue
        shares = prevalence([[label for one in rows for labels in one.labels[unit].values() for label in labels]])
        agreement[unit] = {
            "items": len(rows),
            "units": sum(len(next(iter(one.labels[unit].values()))) for one in rows),
            "error_share": shares.get(1, 0.0),
            **{
                name: _interval(rows, lambda drawn, f=formula, u=unit: f(drawn, u), draws, seed)  # type: ignore[misc]
                for name, formula in formulas.items()
            },
        }
    return agreement


def _interval(
    rows: Sequence[T], statistic: Callable[[Sequence[T]], float | None], draws: int, seed: int
) -> dict[str, float | None]:
    made = bootstrap_interval(rows, statistic, draws=draws, seed=seed)
    return {"value": made.value, "low": made.low, "high": made.high}


def _annotation_pairs(items: Items) -> Iterator[tuple[JudgedItem, Annotation, Annotation]]:
    for judged in shared(items):
        for first, second in combinations(sorted(judged.annotations), 2):
            yield judged, judged.annotations[first], judged.annotations[second]


def span_agreement(items: Items, draws: int, seed: int) -> dict[str, Any]:
    """F1 of spans in three senses, with the type and without, and of each type alone; None where nobody marked any."""
    rows = [one for one in shared(items) if one.item.marked is not None]
    if not rows:
        return {}
    senses: dict[str, Callable[..., MatchCounts]] = {
        "exact": exact_matches,
        "overlap": overlap_matches,
        "characters": character_matches,
    }

    def counted(matches: Callable[..., MatchCounts], typed: bool) -> list[list[MatchCounts]]:
        return [[matches(a.errors, b.errors, typed=typed) for _, a, b in _annotation_pairs([row])] for row in rows]

    agreement: dict[str, Any] = {
        name + ("" if typed else "_untyped"): _interval(
            counted(matches, typed), lambda drawn: pooled_f1(chain.from_iterable(drawn)), draws, seed
        )
        for name, matches in senses.items()
        for typed in (True, False)
    }
    by_type: dict[str, list[MatchCounts]] = {}
    for _, a, b in _annotation_pairs(rows):
        for name, counts in matches_by_type(a.errors, b.errors, overlap_matches).items():
            by_type.setdefault(name, []).append(counts)
    return {**agreement, "overlap_by_type": {name: pooled_f1(counts) for name, counts in sorted(by_type.items())}}


def other_agreement(items: Items, answers: Mapping[str, str]) -> dict[str, Any]:
    """Missing sentences, corrections and rankings.

    Args:
        items: of the project.
        answers: of each item the marked answer, which both corrections start from.
    """
    pairs = list(_annotation_pairs(items))
    marked = [(judged, a, b) for judged, a, b in pairs if judged.item.marked is not None]
    gaps = [set_matches(_sentences(a), _sentences(b)) for _, a, b in marked]
    corrected = [(j, a, b) for j, a, b in marked if a.correction is not None and b.correction is not None]
    compared = [(a, b) for _, a, b in pairs if a.preferences and b.preferences]
    agreement: dict[str, Any] = {"missing_sentences_f1": pooled_f1(gaps)}
    if corrected:
        agreement["correction_f1"] = fmean(
            correction_f1(a.correction or "", b.correction or "") for _, a, b in corrected
        )
        with_answer = [
            correction_f1(one.correction or "", answers[judged.item.id]) for judged, a, b in corrected for one in (a, b)
        ]
        agreement["correction_f1_with_answer"] = fmean(with_answer)
    if compared:
        first, second = ([v for pair in compared for v in pair[side].preferences] for side in (0, 1))
        agreement["preference_percent"] = percent_agreement(first, second)
        agreement["preference_kappa"] = cohen_kappa(first, second)
    ranked = [(j, a, b) for j, a, b in pairs if a.ranking is not None and b.ranking is not None]
    if ranked:
        ranks = [tuple(_ranks(one, len(j.item.answers)) for one in (a, b)) for j, a, b in ranked]
        agreement["kendall_tau_b"] = mean_kendall_tau_b([row[0] for row in ranks], [row[1] for row in ranks])
    every = [one for judged in items for one in judged.annotations.values() if one.preferences]
    complete = [one for one in every if None not in one.preferences]
    if complete:
        bias = order_bias([[int(v or 0) for v in one.preferences] for one in complete], [one.order for one in complete])
        agreement["order_bias"] = {**asdict(bias), "share": bias.share}
    return agreement


def _sentences(one: Annotation) -> set[tuple[int, int]]:
    return {(gap.passage_id, sentence) for gap in one.missing for sentence in gap.sentence_ids}


def _ranks(one: Annotation, answers: int) -> list[float]:
    places = {answer: float(place) for place, group in enumerate(one.ranking or ()) for answer in group}
    return [places[answer] for answer in range(answers)]


def by_annotator(items: Items, gold: Mapping[str, Mapping[str, Labels]]) -> list[dict[str, Any]]:
    """Of each annotator: how much, how fast, how many marks, agreement with the others and with known answers.

    Flags: `fast`, where the median of a person's seconds is below the 20th percentile of all annotations; `outlier`,
    where the spans an answer are more than twice, or less than half, of all others'.

    Args:
        items: of the project.
        gold: of qualification items, the labels that are known to be right, by kind of unit.
    """
    every = [(judged, one) for judged in items for one in judged.annotations.values()]
    times = sorted(one.seconds for _, one in every if one.seconds is not None)
    rows = []
    for name in people_of(items):
        own = [one for _, one in every if one.annotator == name]
        marks = fmean(len(one.errors) for one in own)
        rest = [len(one.errors) for _, one in every if one.annotator != name]
        seconds = [one.seconds for one in own if one.seconds is not None]
        row: dict[str, Any] = {
            "annotator": name,
            "annotations": len(own),
            "seconds": median(seconds) if seconds else None,
            "spans": marks,
        }
        units = sorted({unit for judged in items for unit in judged.labels})
        for unit in units:
            row[f"{unit}_with_others"] = _with_others(items, name, unit)
            row[f"{unit}_with_known"] = _with_known(items, name, unit, gold)
        fast = bool(seconds) and len(times) >= 5 and median(seconds) < times[len(times) // 5]
        odd = bool(rest) and not fmean(rest) / 2 <= marks <= fmean(rest) * 2
        row["flags"] = [flag for flag, raised in (("fast", fast), ("outlier", odd)) if raised]
        rows.append(row)
    return rows


def _with_others(items: Items, name: str, unit: str) -> float | None:
    ours = [one for one in items if name in one.annotations]
    own: list[int | None] = []
    other: list[int | None] = []
    for one in ours:
        for who, labels in one.labels.get(unit, {}).items():
            if who != name:
                own += one.labels[unit][name]
                other += labels
    return percent_agreement(own, other)


def _with_known(items: Items, name: str, unit: str, gold: Mapping[str, Mapping[str, Labels]]) -> float | None:
    labels: list[int | None] = []
    right: list[int | None] = []
    for one in items:
        if name in one.annotations and unit in gold.get(one.item.id, {}):
            labels += one.labels[unit][name]
            right += gold[one.item.id][unit]
    return percent_agreement(labels, right)
