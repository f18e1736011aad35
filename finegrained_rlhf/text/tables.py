"""Tables for people: Markdown from rows, and mean, spread and range of rows."""

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
