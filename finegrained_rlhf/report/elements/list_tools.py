"""Search, order and filter of a list of answers: controls that the script shows and the values that it sorts by.

Without the script the controls stay hidden and the list keeps its order, worst first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from finegrained_rlhf.report.elements.html import Html, el
from finegrained_rlhf.runtime.directory.samples import SampleRecord


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
