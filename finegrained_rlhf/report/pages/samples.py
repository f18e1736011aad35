"""Which responses a report shows: the same validation prompts before and after, and sampled responses by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from finegrained_rlhf.report.charts.heatmap import Group, heat_panel
from finegrained_rlhf.report.elements.html import Html, el
from finegrained_rlhf.report.elements.page import details
from finegrained_rlhf.report.runs.record import RunRecord
from finegrained_rlhf.runtime.directory.samples import SampleRecord

ROWS_OF_A_STEP = 4


def before_and_after(record: RunRecord) -> Html:
    """Greedy answers of the first, the exported and the last validation to the same prompts, worst first."""
    shown = record.shown_answers
    if not shown:
        return el("p", "The run kept no answers to validation prompts.", class_="none")
    columns = {step_name(record, step): rows for step, rows in shown.items()}
    step = shown_export(record)
    by = step_name(record, step) if step in shown else None
    return heat_panel("answers", grouped(columns, by=by, references=record.references), record.components)


def by_step(record: RunRecord) -> Html:
    """Some sampled responses of a few steps."""
    if not record.samples:
        return el("p", "The run kept no sampled responses.", class_="none")
    parts = []
    steps = list(record.samples)
    for step, rows in record.samples.items():
        groups = sampled_groups(rows[:ROWS_OF_A_STEP])
        panel = heat_panel(f"step-{step}", groups, record.components, shown=ROWS_OF_A_STEP, tools=False)
        parts.append(
            details(f"Step {step}: {len(rows[:ROWS_OF_A_STEP])} of {len(rows)} kept", panel, open_=step == steps[-1])
        )
    return el("div", *parts)


def shown_export(record: RunRecord) -> int | None:
    """The step of the exported policy, or of the best validation while none is exported."""
    return int(record.best["step"]) if record.best else None


def step_name(record: RunRecord, step: int) -> str:
    """A step as the heading of its answers: which one was exported, which policy is the initial one."""
    words = [f"step {step}"]
    if step == 0:
        words.append("initial policy")
    if step == shown_export(record):
        words.append("exported" if record.exported is not None else "best")
    return ", ".join(words)


def grouped(
    columns: Mapping[str, Sequence[SampleRecord]],
    limit: int | None = None,
    *,
    by: str | None = None,
    references: Mapping[str, Sequence[str]] | None = None,
) -> list[Group]:
    """Responses to one prompt side by side: one column a heading, the prompt of the worst answer first.

    Args:
        columns: responses by heading; one response a prompt counts.
        limit: at most so many prompts, the worst ones.
        by: heading of the column whose weighted totals give the order; None is the last one.
        references: human answers by the prompt's text.
    """
    by_heading = {heading: {row.id: row for row in reversed(rows)} for heading, rows in columns.items()}
    prompts = {row.id: row.prompt for rows in columns.values() for row in rows}
    ranked = by_heading[by if by is not None else list(by_heading)[-1]] if by_heading else {}
    order = sorted(prompts, key=lambda i: ranked[i].total if i in ranked else float("inf"))
    return [
        Group(
            prompts[i],
            [(heading, rows.get(i)) for heading, rows in by_heading.items()],
            tuple((references or {}).get(prompts[i], ())),
            ranked.get(i),
        )
        for i in order[:limit]
    ]


def sampled_groups(rows: Sequence[SampleRecord]) -> list[Group]:
    """Responses that follow one another with one prompt, side by side."""
    groups: list[tuple[str, list[tuple[str, SampleRecord | None]], str]] = []
    for row in rows:
        if not groups or groups[-1][2] != row.id:
            groups.append((row.prompt, [], row.id))
        groups[-1][1].append((f"sample {row.sample + 1}", row))
    return [Group(prompt, cells) for prompt, cells, _ in groups]
