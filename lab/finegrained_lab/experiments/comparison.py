"""Statements about rows of several systems and seeds: what the thesis says, and how a system differs from another.

Every sentence that a page prints about its numbers is made here from the numbers, so that it is true of whatever came
out.
"""

from __future__ import annotations

import operator
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from finegrained_rlhf.text.tables import cell, markdown_table, summarise_rows

Row = Mapping[str, Any]
_RELATIONS = {"<": operator.lt, ">": operator.gt}


@dataclass(frozen=True)
class Claim:
    """A statement of the thesis as a comparison of two numbers, as a rule those of two systems in one column.

    Attributes:
        text: what the thesis says, in words.
        source: its figure, table or section.
        column: of the rows.
        left: system on the left side.
        relation: the value of `left` stands so to that of `right`.
        right: system on the right side.
        thesis: the thesis's two numbers, where it prints them.
        right_column: of the right side, where it is another one.
    """

    text: str
    source: str
    column: str
    left: str
    relation: Literal["<", ">"]
    right: str
    thesis: tuple[float, float] | None = None
    right_column: str | None = None


def seeds_of(rows: Sequence[Row]) -> list[int]:
    """The seeds of rows, each once, in order."""
    return list(dict.fromkeys(row["seed"] for row in rows))


def values_of(rows: Sequence[Row], system: str, column: str) -> dict[int, float | None]:
    """One system's values by seed; None where a row has none."""
    return {row["seed"]: row.get(column) for row in rows if row["system"] == system}


def check_claims(claims: Sequence[Claim], rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Each claim with the means of both sides and the number of seeds in which it holds.

    A seed in which a side has no value counts as one in which the claim does not hold.
    """
    checked = []
    for claim in claims:
        left, right_column = values_of(rows, claim.left, claim.column), claim.right_column or claim.column
        right = values_of(rows, claim.right, right_column)
        holds = _RELATIONS[claim.relation]
        both = [(left[seed], right.get(seed)) for seed in left]
        checked.append(
            {
                "claim": claim.text,
                "source": claim.source,
                "column": claim.column,
                "left": claim.left,
                "relation": claim.relation,
                "right": claim.right,
                "right_column": right_column,
                "thesis": None if claim.thesis is None else list(claim.thesis),
                "means": [_mean(left), _mean(right)],
                "holds_in": sum(a is not None and b is not None and holds(a, b) for a, b in both),
                "seeds": len(both),
            }
        )
    return checked


def seeds_that_hold(checked: Mapping[str, Any], rows: Sequence[Row]) -> set[int]:
    """The seeds in which a checked claim holds."""
    left = values_of(rows, checked["left"], checked["column"])
    right = values_of(rows, checked["right"], checked["right_column"])
    holds = _RELATIONS[checked["relation"]]
    pairs = {seed: (value, right.get(seed)) for seed, value in left.items()}
    return {seed for seed, (a, b) in pairs.items() if a is not None and b is not None and holds(a, b)}


def _mean(values: Mapping[int, float | None]) -> float | None:
    known = [value for value in values.values() if value is not None]
    return statistics.fmean(known) if known else None


def claims_page(checked: Sequence[Mapping[str, Any]], world: str) -> str:
    """A table of checked claims, and how many of them hold. `world` is where the numbers come from."""
    rows = [
        {
            "the thesis says": claim["claim"],
            "source": claim["source"],
            "thesis": "–" if claim["thesis"] is None else _against(claim["thesis"]),
            world: _against(claim["means"]),
            "column": " against ".join(dict.fromkeys([claim["column"], claim["right_column"]])),
            "holds in": f"{claim['holds_in']} of {claim['seeds']} seeds",
        }
        for claim in checked
    ]
    everywhere = sum(claim["holds_in"] == claim["seeds"] for claim in checked)
    nowhere = sum(claim["holds_in"] == 0 for claim in checked)
    rest = len(checked) - everywhere - nowhere
    columns = ["the thesis says", "source", "thesis", world, "column", "holds in"]
    return (
        f"{markdown_table(rows, columns)}\nOf these {len(checked)} statements {everywhere} hold in every seed, {rest} "
        f"in some, {nowhere} in none. Numbers are the left side against the right side of the statement, means over "
        "seeds.\n"
    )


def _against(pair: Sequence[float | None]) -> str:
    return " against ".join(cell(value) for value in pair)


def differences(rows: Sequence[Row], baseline: str, columns: Sequence[str]) -> dict[str, dict[str, dict[str, float]]]:
    """How far every other system lies from `baseline`, seed by seed.

    Returns:
        By system and column: `mean`, `min` and `max` of (system − baseline) over seeds; `error`, the standard error of
        that mean (of one seed 0: it has none); and in how many of `seeds` the system is `higher` and `lower`. Columns
        in which a seed has no value are left out.
    """
    by_system: dict[str, dict[str, dict[str, float]]] = {}
    for system in dict.fromkeys(row["system"] for row in rows if row["system"] != baseline):
        by_system[system] = {}
        for column in columns:
            ours, base = values_of(rows, system, column), values_of(rows, baseline, column)
            steps = [(ours[seed], base.get(seed)) for seed in ours]
            gaps = [a - b for a, b in steps if a is not None and b is not None]
            if gaps and len(gaps) == len(steps):
                by_system[system][column] = {
                    "mean": statistics.fmean(gaps),
                    "error": statistics.stdev(gaps) / len(gaps) ** 0.5 if len(gaps) > 1 else 0.0,
                    "min": min(gaps),
                    "max": max(gaps),
                    "higher": sum(gap > 0 for gap in gaps),
                    "lower": sum(gap < 0 for gap in gaps),
                    "seeds": len(gaps),
                }
    return by_system


def margins(rows: Sequence[Row], left: str, right: str, columns: Sequence[str]) -> list[dict[str, Any]]:
    """How far `left` lies from `right` in each column: what `differences` says of it, with the name of the `column`."""
    chosen = [row for row in rows if row["system"] in (left, right)]
    return [{"column": column, **gap} for column, gap in differences(chosen, right, columns).get(left, {}).items()]


def margins_page(gaps: Sequence[Mapping[str, Any]]) -> str:
    """A table of `margins`: mean, of several seeds ± its standard error, and in how many it points which way."""
    rows = [
        {
            "column": margin["column"],
            "difference": f"{margin['mean']:+.3f}" + (f" ± {margin['error']:.3f}" if margin["seeds"] > 1 else ""),
            "lower in": f"{margin['lower']} of {margin['seeds']} seeds",
            "higher in": f"{margin['higher']} of {margin['seeds']} seeds",
        }
        for margin in gaps
    ]
    return markdown_table(rows, ["column", "difference", "lower in", "higher in"])


def differences_page(systems: Mapping[str, Mapping[str, Mapping[str, float]]], columns: Sequence[str]) -> str:
    """A table of `differences`: the mean; of several seeds its standard error, and in how many it points that way."""
    rows = [{"system": system, **{c: _difference(d) for c, d in by.items()}} for system, by in systems.items()]
    return markdown_table(rows, ["system", *columns])


def _difference(difference: Mapping[str, float]) -> str:
    if difference["mean"] == 0:
        return "0"
    side = "higher" if difference["mean"] > 0 else "lower"
    if difference["seeds"] == 1:
        return f"{difference['mean']:+.3f}"
    error = f" ± {difference['error']:.3f}" if "error" in difference else ""  # results files of before have none
    return f"{difference['mean']:+.3f}{error} ({side} in {difference[side]:.0f} of {difference['seeds']:.0f})"


def compared(rows: Sequence[Row], systems: Sequence[str], columns: Sequence[str], baseline: str) -> dict[str, Any]:
    """`summary` by system and `differences` from the baseline."""
    return {
        "summary": {system: summarise_rows([r for r in rows if r["system"] == system], columns) for system in systems},
        "differences": {"from": baseline, "systems": differences(rows, baseline, columns)},
    }


def compared_page(result: Mapping[str, Any], columns: Sequence[str], baseline: str) -> str:
    """What `compared` found, and every run."""
    seeds, systems = result["seeds"], result["differences"]["systems"]
    has_errors = any("error" in difference for columns_of in systems.values() for difference in columns_of.values())
    over = f", mean over seeds{' ± its standard error' if has_errors else ''}" if len(seeds) > 1 else ""
    return (
        f"## {spread_heading(seeds)}\n\n{spread_table(result['summary'], 'system', columns, seeds)}\n"
        f"## Difference from {baseline}{over}\n\n{differences_page(systems, columns)}\n"
        f"## Every run\n\n{markdown_table(result['rows'], ['system', 'seed', *columns])}"
    )


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


def printed(columns: Sequence[str], lines: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """Lines of a printed table, by system, as numbers of these columns."""
    return {system: dict(zip(columns, map(float, line.split()), strict=True)) for system, line in lines.items()}


def beside_printed(title: str, numbers: Mapping[str, Mapping[str, float]], rows: Sequence[Row]) -> str:
    """A table of means over seeds, with printed numbers beside them in parentheses.

    Args:
        title: of the table.
        numbers: that are printed, by system and column.
        rows: ours; a number that they lack is a dash.
    """
    lines = []
    for system, columns in numbers.items():
        line = {"system": system}
        for column, number in columns.items():
            found = [row[column] for row in rows if row["system"] == system and column in row]
            line[column] = f"{statistics.fmean(found):.3g} ({number:g})" if found else f"– ({number:g})"
        lines.append(line)
    return f"## {title}\n\nIn parentheses what the thesis prints.\n\n{markdown_table(lines, [*lines[0]])}"
