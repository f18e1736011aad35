"""Answers of a run: those of one step as heat maps, one prompt's over time, and one answer token by token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel
from starlette.exceptions import HTTPException

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.report.charts.heatmap import Group, heat_panel
from finegrained_rlhf.report.charts.svg import Chart, Line, figure
from finegrained_rlhf.report.elements.html import Html, el, isolated, join, signed
from finegrained_rlhf.report.elements.page import table
from finegrained_rlhf.report.pages.samples import shown_export, step_name
from finegrained_rlhf.report.runs.record import ANSWERED_STEPS, RunRecord, evenly
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.directory.samples import QUANTITIES, SampleRecord, read_samples, sample_files
from finegrained_rlhf.web.page import address
from finegrained_rlhf.web.runs.catalog import Entry

_OPEN = 4
"""Prompts that are open; the rest unfolds."""


class Look(BaseModel):
    """What of a run is shown.

    Attributes:
        name: of the run, its path below the directory.
        view: one of the views.
        kind: greedy answers of a validation, or sampled ones of a training step.
        step: of which; None is the exported policy's validation, or the last step.
        prompt: the answers to this one over all steps; empty shows those of one step.
        row: of the file of a step, from 0 on: one answer.
    """

    name: str
    view: str = "overview"
    kind: Literal["validation", "training"] = "validation"
    step: int | None = None
    prompt: str = ""
    row: int = 0


def of_step(entry: Entry, record: RunRecord, look: Look) -> dict[str, Any]:
    """The values of the template: heat maps of a step, beside those of the first one, and the steps that there are."""
    files = _files(entry, look.kind)
    if not files and look.kind == "validation" and look.step is None and _files(entry, "training"):
        look = look.model_copy(update={"kind": "training"})
        files = _files(entry, look.kind)
    steps = sorted(files)
    best = shown_export(record)
    step = look.step if look.step is not None else best if best in files else steps[-1] if steps else None
    values: dict[str, Any] = {"look": look, "steps": [(s, _named(record, look.kind, s)) for s in steps], "step": step}
    if step is None:
        return {**values, "panel": None, "damaged": []}
    if step not in files:
        raise HTTPException(404, f"No answers of step {step} are kept ({look.kind}); see {entry.name}/samples.")
    values |= {"before": _next_to(steps, step, -1), "after": _next_to(steps, step, 1)}
    damaged: list[str] = []
    if look.prompt:
        chosen = sorted(evenly(steps, ANSWERED_STEPS) | {step})
    else:
        chosen = sorted({steps[0], step}) if look.kind == "validation" else [step]
    rows = {s: _read(files[s], damaged) for s in chosen}
    groups = _groups(entry, record, look, rows, step)
    panel = heat_panel("answers", groups, record.components, shown=_OPEN) if groups else None
    return {**values, "panel": panel, "damaged": damaged}


def _groups(
    entry: Entry, record: RunRecord, look: Look, rows: Mapping[int, Sequence[SampleRecord]], step: int
) -> list[Group]:
    """One a prompt, the worst answer of `step` first; a cell a step, and of training steps one a sample."""
    by_prompt: dict[str, list[tuple[int, int, SampleRecord]]] = {}
    for at, samples in rows.items():
        for number, sample in enumerate(samples):
            if not look.prompt or sample.id == look.prompt:
                by_prompt.setdefault(sample.id, []).append((at, number, sample))
    groups = []
    for prompt, cells in by_prompt.items():
        links = [(_heading(entry, record, look, at, number, sample), sample) for at, number, sample in cells]
        now = [sample for at, _, sample in cells if at == step]
        worst = min(now, key=lambda sample: sample.total, default=None)
        references = record.references.get(cells[0][2].prompt, ())
        if not look.prompt and len(rows) + (look.kind == "training") > 1:
            address = _address(entry, look, view="answers", step=step, prompt=prompt)
            links[-1] = (join(links[-1][0], " · ", el("a", "over time", href=address)), links[-1][1])
        groups.append(Group(cells[0][2].prompt, links, references, worst))
    return sorted(groups, key=lambda group: group.shown.total if group.shown else float("inf"))


def _heading(entry: Entry, record: RunRecord, look: Look, step: int, number: int, sample: SampleRecord) -> Html:
    """What stands above an answer: a link to its tokens."""
    words = _named(record, look.kind, step)
    if look.kind == "training":
        words = f"{words}, sample {sample.sample + 1}"
    return el("a", words, href=_address(entry, look, view="answer", step=step, row=number))


def one(entry: Entry, record: RunRecord, look: Look) -> dict[str, Any]:
    """The values of the template: one answer as a heat map, and what training made of each of its tokens."""
    files = _files(entry, look.kind)
    if look.step not in files:
        raise HTTPException(404, f"No answers of step {look.step} are kept ({look.kind}).")
    rows = read_samples(files[look.step])
    if not 0 <= look.row < len(rows):
        raise HTTPException(404, f"Step {look.step} has answers 0 to {len(rows) - 1}, not {look.row}.")
    sample = rows[look.row]
    heading = f"{_named(record, look.kind, look.step)}, sample {sample.sample + 1}"
    group = Group(sample.prompt, [(heading, sample)], record.references.get(sample.prompt, ()))
    over_time = _address(entry, look, view="answers", step=look.step, prompt=sample.id)
    return {
        "look": look,
        "count": len(rows),
        "back": _address(entry, look, view="answers", step=look.step),
        "over_time": over_time,
        "before": _address(entry, look, view="answer", step=look.step, row=look.row - 1) if look.row else None,
        "after": _address(entry, look, view="answer", step=look.step, row=look.row + 1)
        if look.row + 1 < len(rows)
        else None,
        "panel": heat_panel("answer", [group], record.components, tools=False),
        "chart": _trace(sample),
        "table": _tokens(sample),
    }


def _trace(sample: SampleRecord) -> Html | None:
    """Advantage, and what each component adds to it, token by token."""
    if sample.tokens is None:
        return None
    numbers, shares = sample.tokens.numbers, sample.tokens.shares

    def line(name: str, values: Sequence[float], slot: int) -> Line:
        return Line(name, [(float(i + 1), value) for i, value in enumerate(values)], slot)

    advantage = [line("advantage", numbers["advantage"], 7)] if "advantage" in numbers else []
    paid = [line(name, values, slot) for slot, (name, values) in enumerate(shares.items())]
    others = [line(name, numbers[name], slot) for slot, name in enumerate(("reward", "value")) if name in numbers]
    kl = [line("KL", numbers["kl"], 2)] if "kl" in numbers else []
    charts = [
        Chart("Advantage, and what it is made of", [*paid, *advantage], x_label="token"),
        Chart("Token reward and value", others, x_label="token"),
        Chart("KL, log π − log π_ref", kl, x_label="token", y_label="nats"),
    ]
    return el("div", *(figure(chart) for chart in charts if chart.lines), class_="charts")


def _tokens(sample: SampleRecord) -> Html | None:
    """A row a token."""
    if sample.tokens is None:
        return None
    numbers = [name for name in QUANTITIES if name in sample.tokens.numbers]
    shares = list(sample.tokens.shares)
    rows = []
    start = 0
    for i, end in enumerate(sample.tokens.ends):
        text = sample.text[start:end]
        cells = [signed(sample.tokens.numbers[name][i], 3) for name in numbers]
        cells += [signed(sample.tokens.shares[name][i], 3) for name in shares]
        scores = [f"{s.component} {signed(s.raw, 3)}" for s in sample.segments if s.token == i]
        rows.append([str(i + 1), el("bdi", text or "·", class_="token"), isolated(", ".join(scores)), *cells])
        start = end
    head = ["", "token", "paid here", *numbers, *(join("from ", isolated(name)) for name in shares)]
    return table(head, rows, words=3)


def _files(entry: Entry, kind: str) -> dict[int, Path]:
    return sample_files(RunDirectory(entry.path), "validation_step" if kind == "validation" else "step")


def _read(path: Path, damaged: list[str]) -> list[SampleRecord]:
    try:
        return read_samples(path)
    except DataError as error:
        damaged.append(str(error))
        return []


def _named(record: RunRecord, kind: str, step: int) -> str:
    return step_name(record, step) if kind == "validation" else f"step {step}"


def _next_to(steps: Sequence[int], step: int, by: int) -> int | None:
    place = steps.index(step) + by
    return steps[place] if 0 <= place < len(steps) else None


def _address(entry: Entry, look: Look, **values: Any) -> str:
    return address("/runs/run", name=entry.name, kind=look.kind, **values)
