"""Tables for people: Markdown from rows, and the spread of rows over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Literal

PrintFormat = Literal["table", "json"]
"""How a command prints what it found: for people, or as one JSON document."""


def cell(value: Any) -> str:
    """A value as a table shows it: floats with three digits (none from 100 on), nothing for None."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3f}"
    return str(value)


def markdown_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """A Markdown table with aligned columns; a row without a column shows a dash."""
    table = [list(columns), *([cell(row.get(column)) for column in columns] for row in rows)]
    widths = [max(len(line[i]) for line in table) for i in range(len(columns))]
    lines = [
        "| " + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) + " |" for line in table
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines) + "\n"


def summarise_rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> dict[str, dict[str, float]]:
    """Mean, sample standard deviation (0 for one row), minimum and maximum of each column."""
    summary = {}
    for column in columns:
        values = [float(row[column]) for row in rows]
        summary[column] = {
            "mean": statistics.fmean(values),
            "std": statistics.stdev(values) if len(values) > 1 else 0.0,
            "min": min(values),
            "max": max(values),
        }
    return summary


def spread_heading(seeds: Sequence[int]) -> str:
    """The heading over a `spread_table`."""
    return f"Seed {seeds[0]}" if len(seeds) == 1 else "Mean ± standard deviation over seeds"


def spread_table(
    summary: Mapping[str, Mapping[str, Mapping[str, float]]], name: str, columns: Sequence[str], seeds: Sequence[int]
) -> str:
    """A Markdown table of mean ± standard deviation; of one seed, which has no spread, the value alone.

    Args:
        summary: what `summarise_rows` gave, by what stands in the first column.
        name: heading of the first column.
        columns: of the summaries; one without a column shows a dash.
        seeds: that the summaries are over.
    """

    def text(spread: Mapping[str, float]) -> str:
        return f"{spread['mean']:.3f}" if len(seeds) == 1 else f"{spread['mean']:.3f} ± {spread['std']:.3f}"

    rows = [
        {name: key, **{column: text(spread) for column, spread in columns_of.items()}}
        for key, columns_of in summary.items()
    ]
    return markdown_table(rows, [name, *columns])
