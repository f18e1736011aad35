"""How the answers to one prompt changed during training: step under step, with the words that are new.

The order is given without a script; search, sorting and filters need one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence

from finegrained_rlhf.report.charts.heatmap import sum_of
from finegrained_rlhf.report.elements.html import Html, el, isolated, join, signed
from finegrained_rlhf.report.elements.list_tools import list_tools, sort_values
from finegrained_rlhf.report.pages.samples import shown_export, step_name
from finegrained_rlhf.report.runs.record import RunRecord
from finegrained_rlhf.runtime.directory.samples import SampleRecord

OPEN = 3
"""Prompts that are open; the rest unfolds."""
AGAIN = 12
"""Training prompts that are shown, of those that were drawn again."""


def timelines(record: RunRecord) -> Html | None:
    """Every kept validation prompt with its answers over training, then training prompts that were drawn again."""
    validation = _by_prompt(record.answers)
    again = {key: rows for key, rows in _by_prompt(record.samples).items() if len(rows) > 1}
    if not validation and not again:
        return None
    best = shown_export(record)
    parts: list[Html | None] = []
    if validation:
        order = sorted(validation, key=lambda key: _shown(validation[key], best).total)
        parts.append(_list(record, "history", {key: validation[key] for key in order}, validation=True))
    lead = (
        f"Training prompts that were drawn in several of the {len(record.samples)} steps read here: {len(again)}."
        if again
        else "No training prompt was drawn twice in the steps whose samples are read here."
    )
    if record.samples:
        parts.append(el("h3", "Sampled answers to training prompts"))
        parts.append(el("p", lead, class_="note"))
    if again:
        parts.append(_list(record, "again", dict(list(again.items())[:AGAIN]), validation=False))
    return join(*parts)


def changed_words(before: str, now: str) -> list[tuple[str, bool]]:
    """`now` in pieces, each with whether it is new against `before`: words are compared, white space is kept."""
    old, new = (re.findall(r"\s+|\S+", text) for text in (before, now))
    pieces: list[tuple[str, bool]] = []
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for tag, _, _, start, end in matcher.get_opcodes():
        if start < end:
            pieces.append(("".join(new[start:end]), tag != "equal"))
    return pieces


def _list(record: RunRecord, name: str, prompts: Mapping[str, Mapping[int, SampleRecord]], *, validation: bool) -> Html:
    drawn = [_prompt(record, rows, validation=validation) for rows in prompts.values()]
    rest = el("details", el("summary", f"{len(drawn) - OPEN} more"), *drawn[OPEN:]) if len(drawn) > OPEN else None
    tools = list_tools(name, record.components)
    return el("div", tools, el("div", *drawn[:OPEN], rest, class_="body"), class_="list", data_open=OPEN)


def _prompt(record: RunRecord, rows: Mapping[int, SampleRecord], *, validation: bool) -> Html:
    shown = _shown(rows, shown_export(record) if validation else None)
    references = record.references.get(shown.prompt, ())
    entries, before = [], None
    for step, row in rows.items():
        # A training sample is drawn before its step's update: no policy that is exported wrote it.
        heading = step_name(record, step) if validation else f"step {step}"
        entries.append(_entry(record, heading, row, before))
        before = row
    reference = [el("p", el("b", "reference "), isolated(text), class_="reference") for text in references[:1]]
    prompt = el("div", isolated(shown.prompt), class_="prompt clamp")
    return el(
        "article", prompt, *reference, el("ol", *entries, class_="steps"), **sort_values(shown, record.components)
    )


def _entry(record: RunRecord, heading: str, row: SampleRecord, before: SampleRecord | None) -> Html:
    sums = [join(isolated(name), " ", el("b", sum_of(row, name))) for name in record.components]
    total = join("weighted total ", el("b", signed(row.total)))
    head = el("div", el("b", heading), *(el("span", s) for s in (*sums, total)), class_="sums")
    if before is not None and before.text == row.text:
        return el("li", head, el("p", "the same answer", class_="none"))
    pieces = changed_words(before.text, row.text) if before is not None else [(row.text, False)]
    text = [el("ins", piece) if new and piece.strip() else join(piece) for piece, new in pieces]
    return el("li", head, el("p", *(text or [el("span", "(empty)", class_="none")]), class_="said", dir="auto"))


def _shown(rows: Mapping[int, SampleRecord], best: int | None) -> SampleRecord:
    """The answer of the exported policy, or the last one."""
    return rows[best] if best is not None and best in rows else list(rows.values())[-1]


def _by_prompt(steps: Mapping[int, Sequence[SampleRecord]]) -> dict[str, dict[int, SampleRecord]]:
    """The first answer to each prompt by step."""
    by_prompt: dict[str, dict[int, SampleRecord]] = {}
    for step, rows in steps.items():
        for row in rows:
            by_prompt.setdefault(row.id, {}).setdefault(step, row)
    return by_prompt
