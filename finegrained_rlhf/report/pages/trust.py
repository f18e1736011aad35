"""How far the reward models can be trusted: on people's labels, and on what the policy wrote during training.

Reads `trust.json`, `stress.json`, `drift.json` and `injections.json`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from finegrained_rlhf.core.checks import is_number
from finegrained_rlhf.metrics.stress import OTHER_WEIGHTS, role_in
from finegrained_rlhf.report.charts.svg import Chart, Line, figure
from finegrained_rlhf.report.elements.html import Html, el, isolated, join, number, signed
from finegrained_rlhf.report.elements.page import table
from finegrained_rlhf.report.runs.record import Row, RunRecord
from finegrained_rlhf.report.stress.page import changes_table

_MEASURES = {"agreement": "Agreement", "precision": "Precision", "recall": "Recall", "f1": "F1"}


def trust_parts(record: RunRecord) -> Html:
    """A table of all reward models, then each one's confusion and calibration, and its stress test where it has one."""
    attacked = [_stress(name, values) for name, values in record.stress.items()]
    if not record.trust:
        return join(el("p", "No reward model of this run has a trust.json.", class_="none"), *attacked)
    rows = [_row(name, trust) for name, trust in record.trust.items()]
    head = ["reward model", "labels", "accuracy", "precision", "recall", "F1", "span F1", "ECE", "examples", "items"]
    blocks = [_model(name, trust) for name, trust in record.trust.items()]
    return join(table(head, rows, words=2), el("div", *blocks, class_="charts"), *attacked)


def _stress(name: str, values: Row) -> Html:
    table_of = el("p", OTHER_WEIGHTS) if values["other_weights"] else changes_table(values, role_in(values, name))
    return join(el("h3", "Stress test of ", isolated(name)), table_of)


def drift_parts(record: RunRecord) -> Html | None:
    """Agreement with the oracle over training; None where it was not measured."""
    components = _mapping(record.drift, "components")
    if not components:
        return None
    names = [name for name in record.components if name in components]
    names += [name for name in components if name not in names]
    charts = []
    for measure, title in _MEASURES.items():
        lines = [Line(name, _points(components[name], measure), slot, "dots") for slot, name in enumerate(names)]
        if any(line.finite for line in lines):
            charts.append(Chart(f"{title} with the oracle", lines, y_label="share", y_range=(0.0, 1.0)))
    return el("div", *map(figure, charts), class_="charts")


def injection_parts(record: RunRecord) -> Html | None:
    """How often the judge changed its mind, by kind of injection; None where nobody tried."""
    kinds = _mapping(record.injections, "kinds")
    if not kinds:
        return None
    rows = [[isolated(kind), *_changes(_mapping(kinds, kind))] for kind in kinds]
    head = ["injection", "pairs", "fewer errors", "more errors", "no judgement", "change of reward"]
    report = record.injections or {}
    about = join(
        "Judge ",
        isolated(str(report.get("judge"))),
        f": {number(report.get('answers'))} answers, {number(report.get('with_errors'))} of them with an error.",
    )
    return join(el("p", about), el("div", table(head, rows), class_="fit"))


def _changes(kind: Row) -> list[str]:
    pairs = kind.get("pairs")
    counts = (kind.get("fewer"), kind.get("more"))
    shares = [
        f"{count / pairs:.0%}" if is_number(count) and is_number(pairs) and pairs > 0 else "–" for count in counts
    ]
    change = kind.get("reward")
    return [number(pairs), *shares, number(kind.get("no_score")), signed(change) if is_number(change) else "–"]


def _points(rows: Any, measure: str) -> list[tuple[float, float]]:
    usable = [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []
    return [(r["step"], r[measure]) for r in usable if is_number(r.get("step")) and is_number(r.get(measure))]


def _row(name: str, trust: Row) -> list[Any]:
    values = [trust.get("accuracy"), trust.get("precision"), trust.get("recall"), trust.get("f1")]
    values += [_mapping(trust, "span").get("f1"), _mapping(trust, "calibration").get("ece")]
    labels = "segments" if "confusion" in trust else "ordered pairs"
    counts = [number(trust.get("examples")), number(trust.get("items"))]
    return [isolated(name), labels, *map(number, values), *counts]


def _model(name: str, trust: Row) -> Html:
    return el("div", el("h3", isolated(name)), _confusion(trust), _reliability(trust))


def _confusion(trust: Row) -> Html | None:
    counts = _mapping(trust, "confusion")
    if not counts:
        return None
    rows = [
        ["marked as an error", _cell(counts, "found", "hit"), _cell(counts, "missed", "miss")],
        ["not marked", _cell(counts, "false_alarms", "miss"), _cell(counts, "clean", "hit")],
    ]
    body = el("tbody", *(el("tr", el("th", word, scope="row"), *cells) for word, *cells in rows))
    head = el("tr", el("th", "people ↓ model →"), el("th", "error", class_="num"), el("th", "none", class_="num"))
    return el("div", el("table", el("thead", head), body, class_="matrix"), class_="scroll fit")


def _cell(counts: Row, key: str, kind: str) -> Html:
    return el("td", number(counts.get(key)), class_=f"num {kind}")


def _reliability(trust: Row) -> Html:
    """Reliability curve: mean probability of each bin against the share that is so."""
    bins = _bins(trust)
    if not bins:
        return el("p", "No calibration was recorded.", class_="none")
    low = 0.0 if "confusion" in trust else 0.5
    most = max(count for *_, count in bins)
    radii = [1.5 + 5 * (count / most) ** 0.5 for *_, count in bins]
    lines = [
        Line("calibrated", [(low, low), (1.0, 1.0)], 7, "faint"),
        Line("model", [(predicted, observed) for predicted, observed, _ in bins], 0, "dots", radii=radii),
    ]
    what = "has an error" if "confusion" in trust else "is preferred"
    chart = Chart(
        f"Calibration, ECE {number(_mapping(trust, 'calibration').get('ece'))}",
        lines,
        x_label=f"predicted probability that it {what}",
        y_label="observed share",
        x_range=(low, 1.0),
        y_range=(0.0, 1.0),
    )
    return figure(chart)


def _bins(trust: Row) -> list[tuple[float, float, float]]:
    rows: Sequence[Any] = _mapping(trust, "calibration").get("bins") or []
    keys = ("predicted", "observed", "count")
    bins = [tuple(row[key] for key in keys) for row in rows if all(is_number(row.get(key)) for key in keys)]
    return [(p, o, c) for p, o, c in bins if c > 0]


def _mapping(value: Any, key: str) -> Mapping[str, Any]:
    inner = value.get(key) if isinstance(value, Mapping) else None
    return inner if isinstance(inner, Mapping) else {}
