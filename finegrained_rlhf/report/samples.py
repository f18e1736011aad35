"""Which responses a report shows: the same validation prompts before and after, and sampled responses by step.

Knows records of runs; how a response is coloured is `heatmap`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from finegrained_rlhf.report.heatmap import Group, heat_panel
from finegrained_rlhf.report.html import Html, el
from finegrained_rlhf.report.page import details
from finegrained_rlhf.report.record import RunRecord
from finegrained_rlhf.report.responses import Response

ROWS_OF_A_STEP = 4


def before_and_after(record: RunRecord) -> Html:
    """Greedy answers of the first, the best and the last validation to the same prompts."""
    if not record.answers:
        return el("p", "The run kept no answers to validation prompts.", class_="none")
    best = int(record.best["step"]) if record.best else None
    columns = {
        (f"step {step}, best" if step == best else f"step {step}"): rows for step, rows in record.answers.items()
    }
    return heat_panel("answers", grouped(columns), record.components)


def by_step(record: RunRecord) -> Html:
    """Some sampled responses of a few steps."""
    if not record.samples:
        return el("p", "The run kept no sampled responses.", class_="none")
    parts = []
    steps = list(record.samples)
    for step, rows in record.samples.items():
        groups = sampled_groups(rows[:ROWS_OF_A_STEP])
        panel = heat_panel(f"step-{step}", groups, record.components, shown=ROWS_OF_A_STEP)
        parts.append(
            details(f"Step {step}: {len(rows[:ROWS_OF_A_STEP])} of {len(rows)} kept", panel, open_=step == steps[-1])
        )
    return el("div", *parts)


def grouped(columns: Mapping[str, Sequence[Response]], limit: int | None = None) -> list[Group]:
    """Responses to one prompt side by side: one column a heading, prompts in the order of the first column.

    Args:
        columns: responses by heading; one response a prompt counts.
        limit: at most so many prompts.
    """
    found = {heading: {row.id: row for row in reversed(rows)} for heading, rows in columns.items()}
    prompts = {row.id: row.prompt for rows in columns.values() for row in rows}
    chosen = list(prompts)[:limit]
    return [Group(prompts[i], [(heading, rows.get(i)) for heading, rows in found.items()]) for i in chosen]


def sampled_groups(rows: Sequence[Response]) -> list[Group]:
    """Responses that follow one another with one prompt, side by side."""
    groups: list[tuple[str, list[tuple[str, Response | None]], str]] = []
    for row in rows:
        if not groups or groups[-1][2] != row.id:
            groups.append((row.prompt, [], row.id))
        groups[-1][1].append((f"sample {row.sample + 1}", row))
    return [Group(prompt, cells) for prompt, cells, _ in groups]
