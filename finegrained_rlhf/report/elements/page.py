"""The page around a report: one file, no reference to anything outside it.

Its policy forbids the browser to fetch or run anything but the page's own style sheet and script. Without the script,
the controls of a list of answers stay hidden and the list keeps its order, worst first.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from finegrained_rlhf.report.elements.html import Html, el, join
from finegrained_rlhf.runtime.directory.samples import SampleRecord


@dataclass(frozen=True)
class PageSection:
    """A section of a report.

    Attributes:
        name: its anchor.
        title: its heading, also in the list of contents.
        lead: what it shows and how to read it; empty says nothing.
        body: content; None leaves the section out.
    """

    name: str
    title: str
    lead: str
    body: Html | None


def page(title: str, header: Html, parts: Sequence[PageSection], style: str = "") -> Html:
    """A whole HTML document: header, contents, sections.

    Args:
        title: of the window; plain text.
        header: what the first screen shows.
        parts: sections in their order.
        style: rules that the content needs beside the style sheet.
    """
    shown = [part for part in parts if part.body is not None]
    nav = el("nav", *(el("a", part.title, href=f"#{part.name}") for part in shown), aria_label="Contents")
    sections = [section(part) for part in shown]
    tip = el("div", id="tip", role="tooltip", hidden=True, dir="auto")
    body = [el("main", header, nav, *sections), tip]
    return offline_document(title, asset("report.css") + style, asset("report.js"), body, images=True)


def section(part: PageSection) -> Html:
    """A section with its heading, as an element."""
    lead = el("p", part.lead, class_="lead") if part.lead else None
    return el("section", el("h2", part.title), lead, part.body, id=part.name)


def offline_document(title: str, style: str, script: str, body: Sequence[Html], images: bool = False) -> Html:
    """A whole HTML document that asks for nothing: the browser may fetch nothing and run no other script.

    Args:
        title: of the window; plain text.
        style: its style sheet.
        script: runs when the body is there.
        body: elements, in order.
        images: whether it holds images, inside its own text.
    """
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        f"{'img-src data:; ' if images else ''}base-uri 'none'; form-action 'none'"
    )
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("meta", name="referrer", content="no-referrer"),
        el("title", title),
        el("style", Html(style)),
    )
    document = el("html", head, el("body", *body, el("script", Html(script))), lang="en")
    return join(Html("<!DOCTYPE html>\n"), document, "\n")


def table(head: Sequence[Any], rows: Sequence[Sequence[Any]], *, words: int = 1) -> Html:
    """A table that scrolls within its own box where it is too wide.

    Args:
        head: column titles.
        rows: cells; text is escaped, Html is not.
        words: so many columns on the left hold words; numbers follow, aligned on the right.
    """

    def line(tag: str, cells: Sequence[Any]) -> Html:
        return el("tr", *(el(tag, cell, class_=None if i < words else "num") for i, cell in enumerate(cells)))

    top = el("thead", line("th", head)) if head else None
    body = el("tbody", *(line("td", row) for row in rows))
    return el("div", el("table", top, body), class_="scroll", tabindex=0)


def heading_row(title: str, columns: int) -> Html:
    """A row of a table that names the rows below it."""
    return el("tr", el("th", title, colspan=columns, scope="rowgroup"), class_="group")


def details(summary: Any, *body: Any, open_: bool = False) -> Html:
    """Something to unfold."""
    return el("details", el("summary", summary), *body, open_=open_)


def asset(name: str) -> str:
    """The text of a file in `assets/`."""
    return resources.files("finegrained_rlhf.report").joinpath("assets", name).read_text(encoding="utf-8")


def list_tools(name: str, components: Sequence[str]) -> Html:
    """The controls of a list; the script finds them by class.

    Args:
        name: unique on the page.
        components: by which the list can be ordered, worst first.
    """
    orders = [
        el("option", "worst weighted total first", value="t"),
        el("option", "best weighted total first", value="-t"),
    ]
    orders += [el("option", f"worst {component} first", value=str(i)) for i, component in enumerate(components)]
    filters = [el("option", "all answers", value=""), el("option", "with a value below 0", value="any")]
    filters += [el("option", f"{component} below 0", value=str(i)) for i, component in enumerate(components)]
    return el(
        "div",
        el("label", "Search ", el("input", type="search", id=f"{name}-search", class_="find")),
        el("label", "Order ", el("select", *orders, id=f"{name}-order", class_="order")),
        el("label", "Show ", el("select", *filters, id=f"{name}-filter", class_="filter")),
        el("span", "", class_="count", role="status"),
        class_="tools",
        hidden=True,
    )


def sort_values(shown: SampleRecord | None, components: Sequence[str]) -> dict[str, Any]:
    """Attributes of a list's item: weighted total, raw sums by component, components with a segment below 0."""
    if shown is None:
        return {}
    below = [str(i) for i, name in enumerate(components) if any(segment.raw < 0 for segment in shown.of(name))]
    return {
        "data_t": f"{shown.total:.6g}",
        "data_s": " ".join(f"{shown.totals(name)[0]:.6g}" for name in components),
        "data_b": " ".join(below) or None,
    }
