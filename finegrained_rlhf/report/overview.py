"""The first screen: what the run is, whether it got better, at what, and at what price.

Knows measures and how to word them. Knows no task.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from finegrained_rlhf.report.html import Html, el, is_number, isolated, join, number, signed
from finegrained_rlhf.report.measures import (
    KL,
    LENGTH,
    SEGMENT,
    Measure,
    price_measures,
    reward_measures,
    seconds,
    true_measures,
)
from finegrained_rlhf.report.page import heading_row, table
from finegrained_rlhf.report.record import Row, RunRecord
from finegrained_rlhf.report.svg import sparkline
from finegrained_rlhf.training.hacking import HackingWarning, hacking_warnings


def header(record: RunRecord) -> Html:
    """Title, what the run is, verdict, warnings."""
    return el(
        "header",
        el("h1", isolated(record.name)),
        el("p", *_about(record), class_="about"),
        _verdict(record),
        warnings_box(record),
    )


def summary(record: RunRecord) -> Html:
    """First against best validation, measure by measure."""
    groups = [
        ("True quality, measured beside the reward", true_measures(record)),
        ("What the reward models say (validation)", reward_measures(record)),
        ("Price", price_measures(record)),
    ]
    if not record.validations:
        return el("p", "No validation to compare.", class_="none")
    head = ["", f"step {record.validations[0]['step']}", after_name(record), "change"]
    head_row = el("tr", *(el("th", cell, class_="num" if i else None) for i, cell in enumerate(head)), _course("th"))
    rows = [part for title, measures in groups if measures for part in (heading_row(title, 5), *map(_row, measures))]
    return el("div", el("table", el("thead", head_row), el("tbody", *rows)), class_="scroll")


def after_name(record: RunRecord) -> str:
    """What the validation is called that the first one is compared with."""
    if record.after is None:
        return "–"
    return f"step {record.after['step']}, {'best' if record.after is record.best else 'last'}"


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
    return table(head, rows, words=len(head))


def found_warnings(record: RunRecord) -> list[tuple[int, HackingWarning]]:
    """Signs of hacking at the best and at the last validation against the first one, each with its step."""
    if len(record.validations) < 2:
        return []
    first = record.validations[0]
    seen: dict[tuple[str, str], tuple[int, HackingWarning]] = {}
    for now in (record.best, record.validations[-1]):
        if now is not None and now is not first and _complete(first) and _complete(now):
            for warning in hacking_warnings(first, now):
                seen.setdefault((warning.component, warning.kind), (int(now["step"]), warning))
    return list(seen.values())


def warnings_box(record: RunRecord) -> Html | None:
    """The warnings, or a line that there is none; nothing where there is nothing to compare."""
    if len(record.validations) < 2:
        return None
    found = found_warnings(record)
    if not found:
        return el("p", "No sign of length, repetition or end-of-sequence hacking in any component.", class_="note")
    lines = [
        el("li", el("b", warning.kind), f", step {step}: ", isolated(warning.message), ".") for step, warning in found
    ]
    return el("div", el("b", "Signs of reward hacking. Read the samples."), el("ul", *lines), class_="warnings")


def duration(value: float) -> str:
    """Seconds in the unit that suits them."""
    for size, unit in ((3600, "h"), (60, "min")):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{value:.0f} s"


def _about(record: RunRecord) -> list[Any]:
    done = record.steps[-1]["step"] if record.steps else 0
    total = record.setting("total_steps")
    parts: list[Any] = [
        isolated(record.path),
        f"{number(done)} of {number(total)} steps" if total else f"{number(done)} steps",
        f"best at step {record.best['step']}" if record.best else "no validation",
        f"seed {record.setting('seed')}" if record.config else None,
        f"commit {record.commit}" if record.commit else None,
    ]
    weights = record.setting("reward", "weights") or {}
    if weights:
        parts.append(join("weights ", *_between([join(isolated(k), " ", _word(v)) for k, v in weights.items()], ", ")))
    return _between([part for part in parts if part is not None], " · ")


def _between(parts: Sequence[Any], gap: str) -> list[Any]:
    return [piece for i, part in enumerate(parts) for piece in ((gap, part) if i else (part,))]


def _verdict(record: RunRecord) -> Html | None:
    """Better, worse, price: a line each, the truth before what the reward models say."""
    reward = reward_measures(record)
    # A sum over more segments is no better answer: where a component has many, its mean by segment speaks for it.
    by_segment = {measure.name for measure in reward if measure.unit == SEGMENT}
    sources = [
        ("truth", true_measures(record)),
        ("reward models", [m for m in reward if m.unit == SEGMENT or m.name not in by_segment]),
        ("form", price_measures(record)),
    ]
    if not any(measure.verdict for _, measures in sources for measure in measures):
        return None
    rows = []
    for word, title in (("better", "Better"), ("worse", "Worse")):
        lines = []
        for source, measures in sources:
            if said := [_said(measure) for measure in measures if measure.verdict == word]:
                lines.append(el("dd", el("span", source, class_="by"), el("span", *_between(said, "; "))))
        rows.append(el("div", el("dt", title), *(lines or [el("dd", "nothing that was measured")]), class_=word))
    rows.append(el("div", el("dt", "Price"), el("dd", *_price(record))))
    if record.after is not record.best:
        rows.append(
            el("div", el("dt", "But"), el("dd", "no validation scored higher than the first; this is the last one"))
        )
    return el("dl", *rows, class_="verdict")


def _said(measure: Measure) -> Html:
    numbers = el("span", el("b", number(measure.first)), " → ", el("b", number(measure.after)), class_="pair")
    return join(isolated(_name(measure)), " ", numbers)


def _name(measure: Measure) -> str:
    return f"{measure.name} per {measure.unit.removeprefix('a ')}" if measure.unit == SEGMENT else measure.name


def _price(record: RunRecord) -> list[Any]:
    parts: list[Any] = []
    measures = {measure.name: measure for measure in price_measures(record)}
    if length := measures.get(LENGTH):
        now, before = number(length.after, 1), number(length.first, 1)
        parts.append(join("answers of ", el("b", now), f" tokens (at first {before})"))
    if kl := measures.get(KL):
        parts.append(join("KL ", el("b", number(kl.after, 2)), " nats from the starting policy"))
    episodes = record.steps[-1].get("episodes") if record.steps else None
    if is_number(episodes):
        parts.append(f"{number(round(episodes))} episodes")
    if (spent := seconds(record)) is not None:
        parts.append(f"{duration(spent)} of training")
    return _between(parts, "; ")


def _row(measure: Measure) -> Html:
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
        _course("td", sparkline(measure.points)),
    )


def _course(tag: str, content: Any = "over training") -> Html:
    return el(tag, content, class_="num course")


def _complete(row: Row) -> bool:
    return {"response_length", "repetition", "eos_rate"} <= row.keys()


def _word(value: Any) -> Any:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else value
