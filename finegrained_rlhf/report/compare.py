"""Several runs beside one another: their best validations in one table, their curves in one chart, their answers.

Knows records of runs and their names. Knows nothing of sweeps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from finegrained_rlhf.report.heatmap import heat_panel, heat_style
from finegrained_rlhf.report.html import Html, el, isolated, join, number
from finegrained_rlhf.report.measures import (
    Measure,
    Point,
    mean_true_error,
    monitored,
    price_measures,
    readable,
    reward_measures,
    series,
    true_measures,
)
from finegrained_rlhf.report.overview import found_warnings
from finegrained_rlhf.report.page import Part, heading_row, page
from finegrained_rlhf.report.record import RunRecord
from finegrained_rlhf.report.responses import Response
from finegrained_rlhf.report.samples import grouped
from finegrained_rlhf.report.svg import Chart, Line, figure, key_of

Named = Mapping[str, RunRecord]
PROMPTS = 4


MEASURES = (
    "Each run at its best validation, or at its last one where none beat the first; the start of the first run beside."
)
CURVES = "Greedy answers to the validation prompts."
ANSWERS = (
    "Greedy answers of the first run's starting policy and of every run at its best validation, coloured by what one "
    "reward component said of each segment. Point at a token, tap it, or use Tab and arrow keys to read its numbers."
)


def compare_page(runs: Named) -> Html:
    """The whole document about several runs."""
    parts = [
        Part("measures", "Best validations", MEASURES, measured(runs)),
        Part("curves", "Validation", CURVES, overlays(runs)),
        Part("answers", "The same prompts", ANSWERS, side_by_side(runs)),
        Part("missing", "What is missing", "", missing_lines(runs)),
    ]
    title = f"{len(runs)} runs"
    places = el("ul", *(el("li", el("b", isolated(name)), " ", isolated(r.path)) for name, r in runs.items()))
    return page(f"{title}: report", el("header", el("h1", title), places, warning_lines(runs)), parts, heat_style())


def names_of(paths: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that tell them apart."""
    parts = [path.resolve().parts for path in paths]
    length = 1
    while length < max(map(len, parts)) and len({p[-length:] for p in parts}) < len(set(parts)):
        length += 1
    return ["/".join(p[-length:]) for p in parts]


def measured(runs: Named) -> Html:
    """One row a measure, one column a run."""
    groups: list[tuple[str, Callable[[RunRecord], list[Measure]]]] = [
        ("True quality, measured beside the reward", true_measures),
        ("What the reward models say (validation)", reward_measures),
        ("Price", price_measures),
    ]
    rows: list[Html] = []
    for title, of in groups:
        found = {name: {(m.name, m.unit): m for m in of(record)} for name, record in runs.items()}
        keys = dict.fromkeys(key for measures in found.values() for key in measures)
        if keys:
            rows.append(heading_row(title, len(runs) + 2))
        first = next(iter(found.values()))
        for key in keys:
            start = first[key].first if key in first else None
            values = [start, *(measures[key].after if key in measures else None for measures in found.values())]
            label = el("td", isolated(key[0]), el("span", key[1], class_="unit") if key[1] else None)
            rows.append(el("tr", label, *(el("td", number(value), class_="num") for value in values)))
    heads = ["start", *(isolated(name) for name in runs)]
    head = el("tr", el("th"), *(el("th", cell, class_="num") for cell in heads))
    return el("div", el("table", el("thead", head), el("tbody", *rows)), class_="scroll")


def overlays(runs: Named) -> Html:
    """One chart a quantity, one line a run."""
    records = list(runs.values())
    components = dict.fromkeys(name for record in records for name in record.components)
    truths = dict.fromkeys(key for record in records for key in monitored(record.validations))
    charts = [
        _overlay(runs, "Validation score", partial(_validated, key="score")),
        _overlay(runs, "Mean true error", lambda r: mean_true_error(r.validations)),
        *(_overlay(runs, readable(key).capitalize(), partial(_validated, key=key)) for key in truths),
        *(_overlay(runs, f"{name}, mean of a segment", partial(_by_segment, name=name)) for name in components),
        _overlay(runs, "Response length, tokens", partial(_validated, key="response_length")),
        _overlay(runs, "Repeated 3-grams", partial(_validated, key="repetition")),
        _overlay(runs, "KL, nats an answer", lambda r: series(r.steps, "kl"), dots=False),
    ]
    key = el("p", key_of([Line(name, (), slot) for slot, name in enumerate(runs)]), class_="keys")
    return join(key, el("div", *(figure(chart) for chart in charts if chart.lines), class_="charts"))


def side_by_side(runs: Named, prompts: int = PROMPTS) -> Html:
    """Answers of all runs to a few validation prompts."""
    records = list(runs.values())
    columns: dict[str, Sequence[Response]] = {}
    if records and (start := records[0].answers.get(min(records[0].answers, default=0))):
        columns["start"] = start
    for name, record in runs.items():
        columns[name] = record.answers.get(_step_shown(record), ())
    groups = grouped(columns, prompts)
    if not groups:
        return el("p", "No run kept answers to validation prompts.", class_="none")
    components = list(dict.fromkeys(name for record in records for name in record.components))
    return heat_panel("answers", groups, components, shown=prompts)


def warning_lines(runs: Named) -> Html | None:
    """Signs of hacking by run: which components gained, and by what; the run's own report says how much."""
    lines = []
    for name, record in runs.items():
        kinds: dict[str, list[str]] = {}
        for _, warning in found_warnings(record):
            kinds.setdefault(warning.component, []).append(warning.kind)
        if kinds:
            said = [
                join("; " if i else "", isolated(c), f" ({', '.join(k)})") for i, (c, k) in enumerate(kinds.items())
            ]
            lines.append(el("li", el("b", isolated(name)), ": ", *said))
    return el("div", el("b", "Signs of reward hacking"), el("ul", *lines), class_="warnings") if lines else None


def missing_lines(runs: Named) -> Html | None:
    """What the runs lack: each line once, with the runs that it is true of."""
    names: dict[str, list[str]] = {}
    for name, record in runs.items():
        for line in record.missing:
            names.setdefault(line, []).append(name)
    lines = []
    for line, lacking in names.items():
        said = [join(", " if i else "", isolated(name)) for i, name in enumerate(lacking)]
        who = "all runs" if len(lacking) == len(runs) > 1 else join(*said)
        lines.append(el("li", el("b", who), ": ", line))
    return el("ul", *lines) if lines else None


def _overlay(runs: Named, title: str, points: Callable[[RunRecord], Sequence[Point]], *, dots: bool = True) -> Chart:
    style: Any = "dots" if dots else "rough"
    lines = [Line(name, points(record), slot, style) for slot, (name, record) in enumerate(runs.items())]
    return Chart(title, [line for line in lines if line.finite], key=False)


def _validated(record: RunRecord, key: str) -> list[Point]:
    return series(record.validations, key)


def _by_segment(record: RunRecord, name: str) -> list[Point]:
    return series(record.validations, f"reward/{name}/raw", f"segments/{name}")


def _step_shown(record: RunRecord) -> int:
    """The validation that the table shows, or the last one with answers where that has none."""
    step = int(record.after["step"]) if record.after else -1
    return step if step in record.answers else max(record.answers, default=-1)
