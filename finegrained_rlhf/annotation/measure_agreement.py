"""Measuring how far annotators agree: what `finegrained measure-agreement` runs.

Writes figures, and a page of disagreements: every item that several people annotated, their marks side by side in
colour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from finegrained_rlhf.annotation.agreement_figures import (
    MISSING,
    JudgedItem,
    agreement_figures,
    judged_items,
    shared,
    unit_labels,
)
from finegrained_rlhf.annotation.annotations import Annotation, annotations_of
from finegrained_rlhf.annotation.project import Project
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_json, write_text
from finegrained_rlhf.core.markers import InputFile, OutputFile, Seed, at_least
from finegrained_rlhf.feedback.labels import SegmentRule
from finegrained_rlhf.feedback.reading import read_feedback
from finegrained_rlhf.feedback.taxonomy import Taxonomy
from finegrained_rlhf.report.elements.html import Html, el, isolated, join
from finegrained_rlhf.report.elements.page import PageSection, page, table
from finegrained_rlhf.text.segmentation import DEFAULT_SEGMENTER, Segmenter, SpacySegmenter
from finegrained_rlhf.text.tables import cell, markdown_table

_STYLE = """
.side{display:grid;grid-template-columns:repeat(auto-fit,minmax(18rem,1fr));gap:1rem;margin:.5rem 0 1.5rem}
.side>div{border:1px solid currentColor;border-radius:6px;padding:.6rem .8rem}
.side p{white-space:pre-wrap;margin:.3rem 0}
mark{background:none;color:inherit;border-bottom:3px solid var(--mark);font-weight:600}
"""


def disagreement_page(
    items: Sequence[JudgedItem], taxonomy: Taxonomy, figures: Mapping[str, Any], project: str, limit: int
) -> str:
    """A whole HTML document.

    Args:
        items: that several people annotated.
        taxonomy: colours and names of types.
        figures: as `MeasureAgreement` writes them.
        project: its name.
        limit: items shown at most, those with most disagreement first.
    """
    ranked = sorted(items, key=lambda one: (-disagreements(one), one.item.id))
    rows = [
        [unit, *(cell(values[name]["value"]) for name in ("percent", "kappa", "alpha")), cell(values["error_share"])]
        for unit, values in figures["labels"].items()
    ]
    summary = table(["unit", "percent", "κ", "α", "share of errors"], rows)
    sections = [
        PageSection(
            "figures", "Agreement", "Intervals and everything else are in the JSON file beside this page.", summary
        ),
        PageSection(
            "items",
            "Side by side",
            f"{min(limit, len(ranked))} of {len(ranked)} items that several people annotated, the least agreed first.",
            join(*(_item(one, taxonomy) for one in ranked[:limit])),
        ),
    ]
    return page(f"Agreement: {project}", el("h1", f"Agreement: {project}"), sections, _STYLE)


def disagreements(judged: JudgedItem) -> int:
    """Units of an item on which not all who judged them agree."""
    count = 0
    for labels in judged.labels.values():
        for unit in zip(*labels.values(), strict=True):
            count += len({label for label in unit if label is not None}) > 1
    return count


def _item(judged: JudgedItem, taxonomy: Taxonomy) -> Html:
    item = judged.item
    columns = [
        el("div", el("h4", isolated(who)), _marked(judged, one, taxonomy)) for who, one in judged.annotations.items()
    ]
    title = el("h3", isolated(f"{item.id}: {item.question}"), f" ({disagreements(judged)} units differ)")
    return join(title, el("div", *columns, class_="side"))


def _marked(judged: JudgedItem, one: Annotation, taxonomy: Taxonomy) -> Html:
    item, parts, place = judged.item, [], 0
    text = "" if item.marked is None else item.answers[item.marked]
    types = taxonomy.error_types
    for error in sorted(one.errors, key=lambda error: error.start):
        kind = types[error.error_type]
        parts.append(text[place : error.start])
        shown = text[error.start : error.end]
        parts.append(el("mark", shown, style=f"--mark:{kind.colour}", title=kind.label))
        parts.append(el("small", f" [{kind.label}] "))
        place = error.end
    parts.append(text[place:])
    gaps = [
        el("li", f"{taxonomy.missing[gap.error_type].label}: passage {gap.passage_id}, {list(gap.sentence_ids)}")
        for gap in one.missing
    ]
    ranking = None if one.ranking is None else el("p", "Ranking: ", " > ".join(map(_group, one.ranking)))
    corrected = None if one.correction is None else el("p", el("small", "Corrected: ", isolated(one.correction)))
    return join(el("p", *parts, dir="auto"), el("ul", *gaps) if gaps else None, corrected, ranking)


def _group(group: Sequence[int]) -> str:
    return " = ".join(str(answer + 1) for answer in group)


@dataclass(frozen=True, kw_only=True)
class MeasureAgreement(Settings):
    """Measure the agreement of the annotators of a project.

    Attributes:
        annotations: JSON lines of annotations (`finegrained read-annotations`).
        tasks: directory of the project.
        output: JSON FILE for the figures; a page of disagreements is written beside it (`.html`).
        qualification: the feedback file of the qualification items, where there is one: what is right of them.
        segmenter: cuts answers as the reward models will.
        draws: resamples of the items for the intervals.
        shown: items on the page at most.
        seed: of the resampling.
    """

    annotations: InputFile
    tasks: InputFile
    output: OutputFile
    qualification: InputFile | None = None
    segmenter: str = DEFAULT_SEGMENTER
    draws: Annotated[int, at_least(1)] = 1000
    shown: Annotated[int, at_least(1)] = 100
    seed: Seed = 0

    def run(self) -> dict[str, Any]:
        """Measure, write, print a table.

        Raises:
            DataError: the annotations are damaged or not of this project, or nobody annotated anything.
        """
        project, segmenter = Project.read(self.tasks), SpacySegmenter(self.segmenter)
        items = judged_items(annotations_of(self.annotations, project), project, segmenter)
        if not items:
            raise DataError("holds no annotation that counts", file=self.annotations)
        figures = agreement_figures(items, project, self.draws, self.seed, self._known(project, segmenter))
        annotators = figures.pop("annotators")
        figures |= {"suggestions": _suggestions(items), "annotators": annotators}
        output = Path(self.output)
        page = disagreement_page(shared(items), project.taxonomy, figures, project.name, self.shown)
        write_text(output.with_suffix(".html"), page)
        write_json(output, figures)
        print(f"{agreement_table(figures)}\n-> {output}, {output.with_suffix('.html')}")
        return figures

    def _known(self, project: Project, segmenter: Segmenter) -> dict[str, dict[str, Sequence[int | None]]]:
        if self.qualification is None:
            return {}
        rules = {name: SegmentRule.of_category(c, project.taxonomy) for name, c in project.taxonomy.categories.items()}
        labels: dict[str, dict[str, Sequence[int | None]]] = {}
        for record in read_feedback(self.qualification, project.taxonomy):
            item = project.items.get(record.id)
            if item is None or record.feedback is None:
                raise DataError("is no marked item of this project", file=self.qualification, record=record.id)
            right = {"": record.feedback}
            labels[record.id] = {name: unit_labels(rule, item, right, segmenter)[""] for name, rule in rules.items()}
            labels[record.id][MISSING] = [int(bool(record.feedback.missing_info))]
        return labels


def _suggestions(items: Sequence[JudgedItem]) -> dict[str, Any]:
    """Marks a single annotator makes with and without suggestions: whether these lead people."""
    single = [one for judged in items if judged.item.role == "single" for one in judged.annotations.values()]
    having = [one for one in single if one.suggestions_shown]
    without = [one for one in single if not one.suggestions_shown]
    if not having:
        return {}
    accepted, shown = (sum(getattr(one, f"suggestions_{n}") for one in having) for n in ("accepted", "shown"))
    return {
        "annotations": len(having),
        "accepted_share": accepted / shown,
        "spans_with": sum(len(one.errors) for one in having) / len(having),
        "spans_without": sum(len(one.errors) for one in without) / len(without) if without else None,
    }


def agreement_table(figures: Mapping[str, Any]) -> str:
    """The figures as tables for people."""

    def shown(value: Mapping[str, float | None]) -> str:
        if value["value"] is None or value["low"] is None or value["high"] is None:
            return cell(value["value"])
        return f"{value['value']:.3f} [{value['low']:.3f}, {value['high']:.3f}]"

    head = f"{figures['annotated_by_several']} of {figures['items']} items were annotated by several people"
    rows = [
        {
            "unit": unit,
            "units": str(values["units"]),
            "errors": cell(values["error_share"]),
            **{name: shown(values[name]) for name in ("percent", "kappa", "alpha")},
        }
        for unit, values in figures["labels"].items()
    ]
    parts = [head]
    if rows:
        parts.append(markdown_table(rows, list(rows[0])))
    spans = [
        {"spans": name, "F1": shown(value)} for name, value in figures["spans"].items() if name != "overlap_by_type"
    ]
    if spans:
        parts.append(markdown_table(spans, list(spans[0])))
    names = ("missing_sentences_f1", "correction_f1", "preference_percent", "preference_kappa", "kendall_tau_b")
    parts += [f"{name}: {cell(figures[name])}" for name in names if figures.get(name) is not None]
    if figures.get("order_bias"):
        bias = figures["order_bias"]
        parts.append(
            f"first shown wins {cell(bias['share'])} of {bias['decided']} decided pairs (p {cell(bias['item_p'])})"
        )
    people = [
        {
            "annotator": row["annotator"],
            "annotations": str(row["annotations"]),
            "seconds": cell(row["seconds"]),
            "spans": cell(row["spans"]),
            "flags": ", ".join(row["flags"]),
        }
        for row in figures["annotators"]
    ]
    parts.append(markdown_table(people, list(people[0])))
    agree = [
        {
            "annotator": row["annotator"],
            "unit": unit,
            "with others": cell(row[f"{unit}_with_others"]),
            "with known answers": cell(row[f"{unit}_with_known"]),
        }
        for row in figures["annotators"]
        for unit in figures["labels"]
        if row[f"{unit}_with_others"] is not None or row[f"{unit}_with_known"] is not None
    ]
    if agree:
        parts.append(markdown_table(agree, list(agree[0])))
    return "\n\n".join(parts)
