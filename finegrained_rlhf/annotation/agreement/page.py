"""A page of disagreements: every item that several people annotated, their marks side by side in colour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from finegrained_rlhf.annotation.agreement.judged import JudgedItem
from finegrained_rlhf.annotation.reading.annotations import Annotation
from finegrained_rlhf.feedback.taxonomy import Taxonomy
from finegrained_rlhf.report.elements.html import Html, el, isolated, join
from finegrained_rlhf.report.elements.page import PageSection, page, table
from finegrained_rlhf.text.tables import cell

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
