"""A stress test as a page: what was ranked right, what leaked, what is for sale, and the worst cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from finegrained_rlhf.metrics.stress import WEAK, price_in_words, rows_of, share_in_words
from finegrained_rlhf.report.elements.html import Html, el, isolated, join, number
from finegrained_rlhf.report.elements.page import PageSection, details, page, table

_STYLE = """
.weak { color: var(--bad, #b3261e); font-weight: 600 }
.case p { white-space: pre-wrap; overflow-wrap: anywhere }
"""
_CHANGES = (
    "Changes to answers whose effect is known. Right is the share of pairs in which everything that must follow does, "
    "with its 95% interval over questions; shares below 80% stand out."
)
_LEAKAGE = (
    "What a change moves where nothing had to follow: other components, and the segments that both answers have. "
    "Moved is the share of pairs that move by more than the spread of answers to one question."
)
_PRICE = "The best of many answers that say nothing of the question, among what it was compared with."
_WORST = "The pairs that are most wrong, in spreads of their component; the changed place is marked."


def stress_page(values: Mapping[str, Any]) -> Html:
    """The page of a report, as `stress.json` has it."""
    header = join(
        el("h1", "Stress test of a reward"),
        el(
            "p",
            isolated(values["data"]),
            f": {values['questions']} questions, seed {values['seed']}; spreads are those of "
            f"{values['compared_with']}.",
        ),
    )
    parts = [
        PageSection("changes", "Changes with a known effect", _CHANGES, changes_table(values)),
        PageSection("price", "Price", _PRICE, _price(values)),
        PageSection("worst", "Worst cases", _WORST, _worst(values)),
        PageSection("leakage", "Leakage", _LEAKAGE, _leakage(values)),
    ]
    return page("Stress test", header, parts, _STYLE)


def changes_table(values: Mapping[str, Any], only: str | None = None) -> Html:
    """A line for each change and role of a report, or for those of one role."""
    rows = [
        [isolated(row["change"]), isolated(row["role"]), row["must"], _share(row), number(row["pairs"])]
        + [isolated(row["family"])]
        for row in rows_of(values, only)
    ]
    return table(["change", "what", "must", "right", "pairs", "family"], rows, words=3)


def _share(row: Mapping[str, Any]) -> Html:
    words = share_in_words(row, "ranked_right")
    return el("span", words, class_="weak" if row["ranked_right"] < WEAK else None)


def _leakage(values: Mapping[str, Any]) -> Html:
    rows = [
        [isolated(name), isolated(role), number(row["pairs"]), f"{row['moved']:.0%}", number(row["mean"], 2)]
        for name, by_role in values["leakage"].items()
        for role, row in by_role.items()
    ]
    return table(["change", "what", "pairs", "moved", "mean, in spreads"], rows, words=2)


def _price(values: Mapping[str, Any]) -> Html:
    words = price_in_words(values)
    about = words[0].upper() + words[1:]
    cases = [
        details(
            join(f"{row['percentile']:.0%}: ", isolated(row["question"])),
            el("p", isolated(row["text"])),
            el("p", f"total {number(row['total'])}; the median answer has {number(row['median'])}", class_="lead"),
        )
        for row in values["search"]["examples"]
    ]
    return el("div", el("p", about), *cases, class_="case")


def _worst(values: Mapping[str, Any]) -> Html:
    if not values["worst"]:
        return el("p", "Everything was ranked right.", class_="none")
    return el("div", *(_case(row, first=i == 0) for i, row in enumerate(values["worst"])), class_="case")


def _case(row: Mapping[str, Any], first: bool) -> Html:
    must = str(row["direction"]).replace("_", " ")
    values = f"{row['role']} must {must}: {number(row['before'])} → {number(row['after'])}"
    return details(
        join(isolated(row["change"]), f" · {values}"),
        el("p", el("b", "Question "), isolated(row["question"])),
        el("p", el("b", "Gold answer " if row["base_source"] == "gold" else "Answer "), isolated(row["base"])),
        el("p", el("b", "Changed "), _marked(row["changed"], row["place"])),
        open_=first,
    )


def _marked(text: str, place: Sequence[int] | None) -> Html:
    if not text:
        return el("i", "(empty)")
    if place is None:
        return isolated(text)
    start, end = place
    return el("bdi", text[:start], el("mark", text[start:end]), text[end:])
