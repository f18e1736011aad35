"""The page of a sweep: its table, its Pareto plot, the curves of all points, their answers, what failed.

What a result lacks is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.checks import is_number
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.report.charts.heatmap import heat_style
from finegrained_rlhf.report.elements.html import MINUS, Html, el, isolated, join
from finegrained_rlhf.report.elements.page import PageSection, page, table
from finegrained_rlhf.report.pages.compare import (
    ANSWERS,
    CURVES,
    DIFFERENCES,
    missing_lines,
    overlays,
    side_by_side,
    warning_lines,
)
from finegrained_rlhf.report.runs.record import RunRecord, read_run
from finegrained_rlhf.report.runs.settings import difference_table
from finegrained_rlhf.report.sweeps.markdown import EXPORTED, exported_words, key_words, metric_words
from finegrained_rlhf.text.tables import cell

PROMPTS = 3
_WORDS = ("system", EXPORTED, "run")
_TABLE = (
    "Mean ± standard deviation where a row stands for several runs, each measured at the policy that it exported: that "
    "of its best validation, which is the initial policy where training found nothing better. Rows of a baseline are "
    "the initial policy, or its best of n answers by the same weighted reward, without any training."
)
# matplotlib's ground, ink and Okabe-Ito colours become the page's own, which suit light and dark.
_COLOURS = {
    "#ffffff": "var(--paper)",
    "#222222": "currentColor",
    "#000000": "currentColor",
    "#0072b2": "var(--s0)",
    "#d55e00": "var(--s1)",
    "#009e73": "var(--s2)",
    "#cc79a7": "var(--s3)",
    "#e69f00": "var(--s4)",
    "#b0b0b0": "var(--rule)",
}


def sweep_page(title: str, result: Mapping[str, Any], pareto_svg: str, runs: Sequence[tuple[str, Path]]) -> str:
    """The whole document.

    Args:
        title: of the sweep.
        result: content of `sweep.json`.
        pareto_svg: the plot as an SVG document or element; "" where there is none.
        runs: name and run directory of each finished point; one that is no run any more is told, not an error.
    """
    records, lost = _records(runs)
    failed = list(result.get("failed") or [])
    parts = [
        PageSection("points", "Points", _TABLE, _summary_table(result)),
        PageSection("pareto", "Pareto plot", "", inline_svg(pareto_svg) if pareto_svg else None),
        PageSection(
            "configuration",
            "What differs in the configurations",
            DIFFERENCES,
            difference_table(records) if records else None,
        ),
        PageSection("curves", "Validation", CURVES, overlays(records) if records else None),
        PageSection("answers", "The same prompts", ANSWERS, side_by_side(records, PROMPTS) if records else None),
        PageSection("runs", "Every run", "", _rows_table(result)),
        PageSection(
            "failed", "Failed points", "The others went on. Start the sweep again to repeat these.", _failed(failed)
        ),
        PageSection("missing", "What is missing", "", _missing(records, lost)),
    ]
    head = el(
        "header",
        el("h1", isolated(title)),
        el("p", isolated(result["description"]), class_="lead") if result.get("description") else None,
        el("p", isolated(result.get("command", "")), f" · commit {result.get('commit') or 'unknown'}", class_="about"),
        el("p", f"{len(failed)} of the points failed.", class_="warnings") if failed else None,
        warning_lines(records),
    )
    return page(f"{title}: sweep", head, parts, heat_style())


def inline_svg(markup: str) -> Html:
    """A matplotlib plot as part of the page: without prologue and metadata, in the page's colours."""
    markup = markup[max(markup.find("<svg"), 0) :]
    markup = re.sub(r"<metadata>.*?</metadata>", "", markup, flags=re.DOTALL)
    markup = re.sub(r"#[0-9a-f]{6}\b", lambda match: _COLOURS.get(match.group(0), match.group(0)), markup)
    return el("div", Html(markup), class_="plot")


def _records(runs: Sequence[tuple[str, Path]]) -> tuple[dict[str, RunRecord], list[str]]:
    records, lost = {}, []
    for name, path in runs:
        try:
            records[name] = read_run(path)
        except DataError as error:
            lost.append(f"{name}: {error}")
    return records, lost


def _summary_table(result: Mapping[str, Any]) -> Html | None:
    rows = []
    for entry in result.get("summary") or []:
        numbers = {_label(result, k): _spread(v) for k, v in _mapping(entry, "metrics").items()}
        front = {"front": "*" if entry.get("front") else ""}
        rows.append({**_point(entry), **_exported(entry), **front, "n": entry.get("n"), **numbers})
    rows, same = _without_constants(rows)
    note = "Rows with * are on the Pareto front: no other is better in one axis and as good in the other."
    notes = [f"The same in all points: {', '.join(same)}."] if same else []
    notes += [note] if result.get("pareto") else []
    return join(_table(rows), *(el("p", line, class_="note") for line in notes)) if rows else None


def _without_constants(rows: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows without the weights and counts that are the same wherever they are given, and these in words."""
    keys = dict.fromkeys(key for row in rows for key in row if key == "n" or key.startswith("weight of "))
    values = {key: {row[key] for row in rows if key in row} for key in keys}
    constant = (
        {key: next(iter(distinct)) for key, distinct in values.items() if len(distinct) == 1} if len(rows) > 1 else {}
    )
    constants = [f"{key} {value}" for key, value in constant.items() if key != "n" or value != 1]
    return [{key: value for key, value in row.items() if key not in constant} for row in rows], constants


def _rows_table(result: Mapping[str, Any]) -> Html | None:
    rows = []
    for row in result.get("rows") or []:
        numbers = {_label(result, key): value for key, value in _mapping(row, "metrics").items()}
        rows.append({**_point(row), **_exported(row), "seed": row.get("seed"), **numbers, "run": row.get("run")})
    return _table(rows) if rows else None


def _failed(failed: Sequence[Mapping[str, Any]]) -> Html | None:
    keys = list(dict.fromkeys(key for point in failed for key in point))
    return (
        table(keys, [[_cell(point.get(key)) for key in keys] for point in failed], words=len(keys)) if failed else None
    )


def _missing(records: Mapping[str, RunRecord], lost: Sequence[str]) -> Html | None:
    rest = missing_lines(records)
    gone = el("ul", *(el("li", line) for line in lost)) if lost else None
    return join(gone, rest) if lost or rest else None


def _point(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What tells a point from others: its system, the keys that were swept, the weights."""
    weights = {
        key_words(f"reward.weights.{name}"): f"{value:g}" if is_number(value) else value
        for name, value in _mapping(entry, "weights").items()
    }
    swept = _mapping(entry, "swept")
    plain = {k: v for k, v in swept.items() if not k.startswith("sweep.") and key_words(k) not in weights}
    short = {key: key_words(key) for key in plain}
    unique = {key: word if list(short.values()).count(word) == 1 else key for key, word in short.items()}
    return {"system": entry.get("system"), **{unique[key]: value for key, value in plain.items()}, **weights}


def _exported(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Which policy a row is measured at; nothing where that is not known."""
    steps = entry.get("exported")
    steps_text = exported_words(steps if isinstance(steps, list) else [steps])
    return {EXPORTED: steps_text} if steps_text else {}


def _table(rows: Sequence[Mapping[str, Any]]) -> Html:
    """Rows with the columns that any of them fills; those of words on the left, those of numbers on the right."""
    filled = {key for row in rows for key, value in row.items() if value not in (None, "")}
    keys = [key for key in dict.fromkeys(key for row in rows for key in row) if key in filled]
    words = [key for key in keys if key in _WORDS or any(_is_word(row.get(key)) for row in rows)]
    order = [*words, *(key for key in keys if key not in words)]
    cells = [[_cell(row.get(key)) for key in order] for row in rows]
    return table([isolated(key) for key in order], cells, words=len(words))


def _is_word(value: Any) -> bool:
    """Text that is no number with its spread."""
    return isinstance(value, str) and not re.match(r"[\d−*]|$", value)


def _cell(value: Any) -> Html:
    if is_number(value):
        return isolated(cell(value).replace("-", MINUS))
    return isolated(cell(value))


def _label(result: Mapping[str, Any], metric: str) -> str:
    label = str(_mapping(result, "metrics").get(metric, metric))
    return metric_words(metric) if label == metric else label


def _spread(values: Any) -> str | float | None:
    """Mean and standard deviation; the mean alone where nothing was averaged."""
    if not isinstance(values, Mapping):
        return values if is_number(values) else None
    mean, std = values.get("mean"), values.get("std")
    if not is_number(mean):
        return None
    return f"{cell(float(mean))} ± {cell(float(std))}".replace("-", MINUS) if is_number(std) and std else float(mean)


def _mapping(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    inner = value.get(key)
    return inner if isinstance(inner, Mapping) else {}
