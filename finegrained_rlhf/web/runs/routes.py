"""Routes of the section "Runs": the table, a page a run, runs side by side, and what is asked while they train.

What a page shows is all in its address.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.responses import HTMLResponse
from starlette.exceptions import HTTPException

from finegrained_rlhf.report.charts.curves import headline_curves
from finegrained_rlhf.report.elements.page import PageSection, section
from finegrained_rlhf.report.pages.compare import compare_sections, warning_lines
from finegrained_rlhf.report.pages.run import run_sections
from finegrained_rlhf.report.pages.verdict import answers_to_three_questions, cautions_box, warnings_box
from finegrained_rlhf.report.runs.record import RunRecord
from finegrained_rlhf.web.page import Section, render
from finegrained_rlhf.web.runs import answers, table
from finegrained_rlhf.web.runs.catalog import Catalog, Entry

router = APIRouter()
VIEWS = {
    "overview": "Overview",
    "curves": "Curves",
    "answers": "Answers",
    "rewards": "Reward models",
    "settings": "Settings",
}
"""Views of a run, with their names."""
_SECTIONS = {
    "curves": ("truth", "rewards", "training", "time"),
    "rewards": ("trust", "drift", "injections", "alignment"),
    "settings": ("evaluation", "configuration", "missing"),
}
_MOST = 12
"""Runs side by side, at most."""


def _begin(app: FastAPI) -> None:
    app.state.catalog = Catalog(app.state.settings.directory)


SECTION = Section("Runs", "/runs", router, _begin)


def _catalog(request: Request) -> Catalog:
    catalog: Catalog = request.app.state.catalog
    return catalog


def _entry(request: Request, name: str) -> Entry:
    try:
        return _catalog(request).entry(name)
    except KeyError:
        raise HTTPException(404, f"There is no run {name!r} below {request.app.state.settings.directory}.") from None


@router.get("/runs")
def runs(request: Request, view: Annotated[table.View, Query()]) -> HTMLResponse:
    """The table of runs."""
    entries = _catalog(request).entries()
    return render(request, "runs/table.html", **table.shown(entries, view), version=_version(entries))


@router.get("/runs/run")
def run(request: Request, look: Annotated[answers.Look, Query()]) -> HTMLResponse:
    """A page of one run: one of `VIEWS`, or `answer` for one answer token by token."""
    catalog, entry = _catalog(request), _entry(request, look.name)
    values: dict[str, Any] = {"entry": entry, "view": look.view, "views": VIEWS, "version": _version([entry])}
    values["others"] = [other.name for other in catalog.entries() if other.name != entry.name and not other.problem]
    if entry.problem is not None:
        return render(request, "runs/run.html", **values)
    record = catalog.record(entry)
    values["stride"] = catalog.stride(entry)
    if look.view == "overview":
        course = PageSection("course", "Course", "", headline_curves(record))
        values["top"] = [cautions_box(record), answers_to_three_questions(record), warnings_box(record)]
        values["sections"] = [course, *run_sections(record, "summary")]
    elif look.view == "answers":
        values["answers"] = answers.of_step(entry, record, look)
    elif look.view == "answer":
        values["answer"] = answers.one(entry, record, look)
    elif look.view in _SECTIONS:
        values["sections"] = run_sections(record, *_SECTIONS[look.view])
    else:
        raise HTTPException(404, f"There is no view {look.view!r}; expected one of {', '.join(VIEWS)}.")
    return render(request, "runs/run.html", **_drawn(values))


@router.get("/runs/compare")
def compare(request: Request, run: Annotated[list[str], Query(max_length=_MOST)]) -> HTMLResponse:
    """Runs side by side, one line each; values share an axis where they mean the same.

    Args:
        request: that is answered.
        run: their names, up to twelve.
    """
    entries = [_entry(request, name) for name in dict.fromkeys(run)]
    records: dict[str, RunRecord] = {entry.name: _catalog(request).record(entry) for entry in entries}
    parts = {part.name: part for part in compare_sections(records)}
    order = ("curves", "measures", "answers", "missing", "configuration")
    values = {
        "entries": entries,
        "names": list(records),
        "top": [warning_lines(records)],
        "sections": [parts[name] for name in order],
    }
    return render(request, "runs/compare.html", **_drawn(values), version=_version(entries))


@router.get("/runs/live")
def live(request: Request, run: Annotated[list[str], Query(max_length=_MOST)] = []) -> dict[str, Any]:  # noqa: B006
    """What changes while runs train, small enough to be asked every few seconds.

    Args:
        request: that is answered.
        run: names; none stands for all runs.

    Returns:
        `version` changes when a page should be drawn again; `running` says how many of the runs train.
    """
    entries = [_entry(request, name) for name in run] if run else _catalog(request).entries()
    return {"version": _version(entries), "running": sum(entry.state.status == "running" for entry in entries)}


def _version(entries: list[Entry]) -> str:
    text = "\n".join(f"{entry.name} {entry.version} {entry.state.status}" for entry in entries)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _drawn(values: dict[str, Any]) -> dict[str, Any]:
    """The values with sections as elements; those without content are left out."""
    parts = [part for part in values.pop("sections", ()) if part.body is not None]
    return {**values, "parts": [section(part) for part in parts], "contents": [(p.name, p.title) for p in parts]}
