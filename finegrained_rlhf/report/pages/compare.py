"""Several runs beside one another: their exported policies in one table, their curves, configurations and answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from finegrained_rlhf.report.charts.heatmap import heat_panel, heat_style
from finegrained_rlhf.report.charts.svg import Chart, Line, figure, key_of
from finegrained_rlhf.report.elements.html import Html, el, isolated, join, number
from finegrained_rlhf.report.elements.page import PageSection, heading_row, page
from finegrained_rlhf.report.pages.samples import grouped
from finegrained_rlhf.report.pages.verdict import policy_name, warnings_of_run
from finegrained_rlhf.report.runs.measures import (
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
from finegrained_rlhf.report.runs.record import RunRecord
from finegrained_rlhf.report.runs.settings import by_identity, difference_table
from finegrained_rlhf.runtime.directory.samples import SampleRecord

Named = Mapping[str, RunRecord]
PROMPTS = 4


MEASURES = (
    "Each run at the validation of its exported policy; the start of the first run beside. Sums over rewards of other "
    "weights or scorers are in another unit: they stand in one row, but say nothing against one another."
)
CURVES = (
    "Greedy answers to the validation prompts. Lines share a chart only where their values mean the same: raw values "
    "of one scorer, weighted totals of one reward. Others have a chart of their own."
)
ANSWERS = (
    "Greedy answers of the first run's starting policy and of every run's exported policy, worst first, coloured by "
    "what one reward component said of each segment. Point at a token, tap it, or use Tab and arrow keys to read its "
    "numbers."
)
DIFFERENCES = "Keys that are not the same in all runs; {run} is the run's own directory."


def compare_sections(runs: Named) -> list[PageSection]:
    """The sections of a page about several runs, in its order."""
    return [
        PageSection("measures", "Exported policies", MEASURES, measured_sections(runs)),
        PageSection("configuration", "What differs in the configurations", DIFFERENCES, difference_table(runs)),
        PageSection("curves", "Validation", CURVES, overlays(runs)),
        PageSection("answers", "The same prompts", ANSWERS, side_by_side(runs)),
        PageSection("missing", "What is missing", "", missing_lines(runs)),
    ]


def compare_page(runs: Named) -> Html:
    """The whole document about several runs."""
    title = f"{len(runs)} runs"
    places = el("ul", *(el("li", el("b", isolated(name)), " ", isolated(r.path)) for name, r in runs.items()))
    top = el("header", el("h1", title), places, warning_lines(runs))
    return page(f"{title}: report", top, compare_sections(runs), heat_style())


def names_of(paths: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that tell them apart."""
    parts = [path.resolve().parts for path in paths]
    length = 1
    while length < max(map(len, parts)) and len({p[-length:] for p in parts}) < len(set(parts)):
        length += 1
    return ["/".join(p[-length:]) for p in parts]


def measured_sections(runs: Named) -> Html:
    """One row a measure, one column a run."""
    rows: list[Html] = []
    for title, measures in measures_by_group(runs):
        rows.append(heading_row(title, len(runs) + 2))
        for (name, unit), values in measures.items():
            label = el("td", isolated(name), el("span", unit, class_="unit") if unit else None)
            rows.append(el("tr", label, *(el("td", number(value), class_="num") for value in values)))
    heads = [el("th", "start", class_="num")]
    for name, record in runs.items():
        heads.append(el("th", isolated(name), el("span", policy_name(record), class_="unit"), class_="num"))
    body = el("table", el("thead", el("tr", el("th"), *heads)), el("tbody", *rows))
    return el("div", body, class_="scroll", tabindex=0)


def measures_by_group(runs: Named) -> list[tuple[str, dict[tuple[str, str], list[float | None]]]]:
    """What runs measured at their exported policies, in groups: by (name, unit) the first run's start, then each run.

    The start of a weighted total is left out where the runs' rewards differ: it holds for the first run only.
    """
    groups: list[tuple[str, Callable[[RunRecord], list[Measure]]]] = [
        ("True quality, measured beside the reward", true_measures),
        ("What the reward models say (validation)", reward_measures),
        ("Price", price_measures),
    ]
    one_reward = len(by_identity(runs)) == 1
    result = []
    for title, of in groups:
        by_run = [{(m.name, m.unit): m for m in of(record)} for record in runs.values()]
        rows: dict[tuple[str, str], list[float | None]] = {}
        for key in dict.fromkeys(key for measures in by_run for key in measures):
            own_unit = key[0] == "weighted total" and not one_reward
            start = by_run[0][key].first if key in by_run[0] and not own_unit else None
            values = [measures[key].after if key in measures else None for measures in by_run]
            rows[(key[0], "by each run's own reward" if own_unit else key[1])] = [start, *values]
        if rows:
            result.append((title, rows))
    return result


def overlays(runs: Named) -> Html:
    """One chart a quantity, one line a run; a chart for each reward where a quantity is of the reward."""
    records = list(runs.values())
    components = dict.fromkeys(name for record in records for name in record.components)
    truths = dict.fromkeys(key for record in records for key in monitored(record.validations))
    slots = {name: slot for slot, name in enumerate(runs)}
    charts = [
        *_by_reward(runs, slots, "Validation score", None, partial(_validated, key="score")),
        _overlay(runs, slots, "Mean true error", lambda r: mean_true_error(r.validations)),
        *(_overlay(runs, slots, readable(key).capitalize(), partial(_validated, key=key)) for key in truths),
    ]
    for name in components:
        title = f"{name}, mean of a segment"
        charts += _by_reward(runs, slots, title, name, partial(_by_segment, name=name))
    charts += [
        _overlay(runs, slots, "Response length, tokens", partial(_validated, key="response_length")),
        _overlay(runs, slots, "Repeated 3-grams", partial(_validated, key="repetition")),
        _overlay(runs, slots, "KL, nats an answer", lambda r: series(r.steps, "kl"), dots=False),
    ]
    key = el("p", key_of([Line(name, (), slot) for name, slot in slots.items()]), class_="keys")
    return join(key, el("div", *(figure(chart) for chart in charts if chart.lines), class_="charts"))


def _by_reward(
    runs: Named, slots: Mapping[str, int], title: str, component: str | None, points: Callable[[RunRecord], Any]
) -> list[Chart]:
    """A chart for each group of runs whose values are in one unit, named where there are several."""
    groups = [g for g in by_identity(runs, component) if any(points(record) for record in g.values())]
    if len(groups) == 1:
        return [_overlay(groups[0], slots, title, points)]
    return [_overlay(group, slots, f"{title}: {', '.join(group)}", points) for group in groups]


def side_by_side(runs: Named, prompts: int = PROMPTS) -> Html:
    """Answers of all runs to a few validation prompts."""
    records = list(runs.values())
    columns: dict[str, Sequence[SampleRecord]] = {}
    if records and (start := records[0].answers.get(min(records[0].answers, default=0))):
        columns["start"] = start
    for name, record in runs.items():
        columns[name] = record.answers.get(_step_shown(record), ())
    references = {text: answers for record in records for text, answers in record.references.items()}
    groups = grouped(columns, prompts, references=references)
    if not groups:
        return el("p", "No run kept answers to validation prompts.", class_="none")
    components = list(dict.fromkeys(name for record in records for name in record.components))
    return heat_panel("answers", groups, components, shown=prompts)


def warning_lines(runs: Named) -> Html | None:
    """Signs of hacking by run: which components gained, and by what; the run's own report says how much."""
    lines = []
    for name, record in runs.items():
        kinds: dict[str, list[str]] = {}
        for _, warning in warnings_of_run(record):
            kinds.setdefault(warning.component, []).append(warning.kind)
        if kinds:
            warnings = [
                join("; " if i else "", isolated(c), f" ({', '.join(k)})") for i, (c, k) in enumerate(kinds.items())
            ]
            lines.append(el("li", el("b", isolated(name)), ": ", *warnings))
    return el("div", el("b", "Signs of reward hacking"), el("ul", *lines), class_="warnings") if lines else None


def missing_lines(runs: Named) -> Html | None:
    """What the runs lack: each line once, with the runs that it is true of."""
    names: dict[str, list[str]] = {}
    for name, record in runs.items():
        for line in record.missing:
            names.setdefault(line, []).append(name)
    lines = []
    for line, lacking in names.items():
        joined = [join(", " if i else "", isolated(name)) for i, name in enumerate(lacking)]
        who = "all runs" if len(lacking) == len(runs) > 1 else join(*joined)
        lines.append(el("li", el("b", who), ": ", line))
    return el("ul", *lines) if lines else None


def _overlay(
    runs: Named,
    slots: Mapping[str, int],
    title: str,
    points: Callable[[RunRecord], Sequence[Point]],
    *,
    dots: bool = True,
) -> Chart:
    style: Any = "dots" if dots else "rough"
    lines = [Line(name, points(record), slots[name], style) for name, record in runs.items()]
    return Chart(title, [line for line in lines if line.finite], key=False)


def _validated(record: RunRecord, key: str) -> list[Point]:
    return series(record.validations, key)


def _by_segment(record: RunRecord, name: str) -> list[Point]:
    return series(record.validations, f"reward/{name}/raw", f"segments/{name}")


def _step_shown(record: RunRecord) -> int:
    """The validation of the exported policy, or the last one with answers where that has none."""
    step = int(record.best["step"]) if record.best else -1
    return step if step in record.answers else max(record.answers, default=-1)
