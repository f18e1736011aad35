"""What the run is, its state, and its first validation against the exported one, measure by measure."""

from __future__ import annotations

from typing import Any

from finegrained_rlhf.report.charts.svg import sparkline
from finegrained_rlhf.report.elements.html import Html, el, isolated, join, number, signed
from finegrained_rlhf.report.elements.page import heading_row, table
from finegrained_rlhf.report.pages.verdict import (
    answers_to_three_questions,
    between,
    cautions_box,
    policy_name,
    price_line,
    warnings_box,
)
from finegrained_rlhf.report.runs.measures import Measure, price_measures, reward_measures, true_measures
from finegrained_rlhf.report.runs.record import RunRecord
from finegrained_rlhf.report.runs.settings import moving_words


def header(record: RunRecord) -> Html:
    """Title, what the run is, the three answers, warnings."""
    return el(
        "header",
        el("h1", isolated(record.name)),
        el("p", *_about(record), class_="about"),
        _stopped(record),
        cautions_box(record),
        answers_to_three_questions(record),
        warnings_box(record),
    )


def run_summary(record: RunRecord) -> Html:
    """First validation against that of the exported policy, measure by measure; the last one beside."""
    groups = [
        ("True quality, measured beside the reward", true_measures(record)),
        ("What the reward models say (validation)", reward_measures(record)),
        ("Price", price_measures(record)),
    ]
    if not record.validations:
        return el("p", "No validation to compare.", class_="none")
    with_last = record.validations[-1] is not record.best
    head = [f"step {record.validations[0]['step']}", policy_name(record), "change", "counts from"]
    head += [f"step {record.validations[-1]['step']}, last"] if with_last else []
    head_row = el("tr", el("th"), *(el("th", cell, class_="num") for cell in head), _course("th"))
    columns = len(head) + 2
    rows = [
        part
        for title, measures in groups
        if measures
        for part in (heading_row(title, columns), *(_row(measure, with_last) for measure in measures))
    ]
    return el("div", el("table", el("thead", head_row), el("tbody", *rows)), class_="scroll")


def components_table(record: RunRecord) -> Html:
    """Weight and settings of each reward component."""
    rows = []
    for name in record.components:
        settings = record.setting("reward", "settings", name) or {}
        scorer = record.setting("reward", "components", name) or {}
        rows.append(
            [
                isolated(name),
                _word(record.setting("reward", "weights", name)),
                _word(settings.get("normalisation", "none")),
                _word(settings.get("aggregation", "sum")),
                _word(settings.get("density", "segment")),
                _word(scorer.get("granularity")),
                isolated(scorer.get("path", scorer.get("_target_", "–"))),
            ]
        )
    head = ["component", "weight", "normalisation", "aggregation", "density", "segments", "scorer"]
    moving = [moving_words(record.config, name) for name in record.components]
    if any(moving):
        head.insert(2, "in training")
        for row, words in zip(rows, moving, strict=True):
            row.insert(2, isolated(words or "–"))
    return table(head, rows, words=len(head))


def _about(record: RunRecord) -> list[Any]:
    done = record.steps[-1]["step"] if record.steps else 0
    total = record.setting("total_steps")
    parts: list[Any] = [
        isolated(record.path),
        f"{number(done)} of {number(total)} steps" if total else f"{number(done)} steps",
        policy_name(record) if record.best else "no validation",
        *price_line(record),
        f"seed {record.setting('seed')}" if record.config else None,
        f"commit {record.commit}" if record.commit else None,
    ]
    weights = record.setting("reward", "weights") or {}
    if weights:
        parts.append(join("weights ", *between([join(isolated(k), " ", _word(v)) for k, v in weights.items()], ", ")))
    return between([part for part in parts if part is not None], " · ")


def _stopped(record: RunRecord) -> Html | None:
    """Why the run ended before its last step, or that it has not ended."""
    state = record.state
    if state.stop_reason:
        word = "Damaged: " if state.status == "damaged" else "Stopped early: "
        return el("p", el("b", word), isolated(state.stop_reason), ".", class_="state")
    if state.locked:
        return el("p", "Still training when this page was made.", class_="state")
    return None


def _row(measure: Measure, with_last: bool) -> Html:
    verdict = measure.verdict
    change = "–" if measure.change is None else signed(measure.change, 3, trim=False)
    colour = {"better": "good", "worse": "bad"}.get(verdict or "", "")
    word = f" {verdict}" if verdict in ("better", "worse") else ""
    return el(
        "tr",
        el("td", isolated(measure.name), el("span", measure.unit, class_="unit") if measure.unit else None),
        el("td", number(measure.first), class_="num"),
        el("td", number(measure.after), class_="num"),
        el("td", change, word, class_=f"num {colour}".strip()),
        el(
            "td",
            f"±{number(measure.threshold)}" if measure.better and measure.change is not None else "–",
            class_="num",
        ),
        el("td", number(measure.last), class_="num") if with_last else None,
        _course("td", sparkline(measure.points)),
    )


def _course(tag: str, content: Any = "over training") -> Html:
    return el(tag, content, class_="num course")


def _word(value: Any) -> Any:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else value
