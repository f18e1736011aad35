"""The table of runs: filtered, sorted and cut into pages as its address says."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from finegrained_rlhf.report.charts.svg import sparkline
from finegrained_rlhf.report.elements.html import number
from finegrained_rlhf.runtime.console import in_words
from finegrained_rlhf.web.page import address
from finegrained_rlhf.web.runs.catalog import Entry

ROWS = 100
"""Rows of a page."""
COLUMNS = {
    "name": "run",
    "state": "state",
    "step": "step",
    "reward": "reward",
    "kl": "KL",
    "score": "score",
    "started": "started",
    "changed": "changed",
}
"""Columns that can be sorted by, with their heads."""
_BY: Mapping[str, Callable[[Entry], Any]] = {
    "name": lambda entry: entry.name,
    "state": lambda entry: entry.state.status,
    "step": lambda entry: entry.state.step,
    "reward": lambda entry: entry.reward,
    "kl": lambda entry: entry.kl,
    "score": lambda entry: entry.scores[-1][1] if entry.scores else None,
    "started": lambda entry: entry.started or None,
    "changed": lambda entry: entry.state.changed,
}


class View(BaseModel):
    """What of the table is shown.

    Attributes:
        q: words that a run's name, kind or problem holds, each of them.
        state: status of `RunState`; empty shows all.
        kind: of training; empty shows all.
        sort: a column, `-` before it for the largest first.
        page: from 1 on.
    """

    q: str = ""
    state: str = ""
    kind: str = ""
    sort: str = "-changed"
    page: int = 1

    def address(self, **changes: Any) -> str:
        """Of the table with other values; those that say nothing are left out."""
        values = {**self.model_dump(), **changes}
        return address("/runs", **{k: v for k, v in values.items() if v != View.model_fields[k].default})


def shown(entries: Sequence[Entry], view: View) -> dict[str, Any]:
    """The values of the template: rows of one page, heads with the address that sorts by them, choices of filters."""
    kept = [entry for entry in entries if _passes(entry, view)]
    column = view.sort.removeprefix("-")
    by = _BY.get(column, _BY["changed"])
    known = [entry for entry in kept if by(entry) is not None]
    known.sort(key=by, reverse=view.sort.startswith("-"))
    ordered = known + [entry for entry in kept if by(entry) is None]
    pages = max(1, -(-len(ordered) // ROWS))
    page = min(max(view.page, 1), pages)
    heads = [(key, word, view.address(sort=_next_sort(view.sort, key), page=1)) for key, word in COLUMNS.items()]
    return {
        "view": view,
        "rows": [_row(entry) for entry in ordered[(page - 1) * ROWS : page * ROWS]],
        "heads": heads,
        "states": Counter(entry.state.status for entry in entries),
        "kinds": Counter(entry.kind for entry in entries if entry.kind),
        "total": len(entries),
        "kept": len(kept),
        "pages": [(n, view.address(page=n)) for n in range(1, pages + 1)],
        "page": page,
    }


def _next_sort(sort: str, column: str) -> str:
    """What a click on a head asks for: numbers begin with the largest, words with the first; then the other way."""
    first, second = (column, f"-{column}") if column in ("name", "state") else (f"-{column}", column)
    return second if sort == first else first


def _passes(entry: Entry, view: View) -> bool:
    words = f"{entry.name} {entry.kind} {entry.why or ''}".lower()
    return (
        view.state in ("", entry.state.status)
        and view.kind in ("", entry.kind)
        and all(word in words for word in view.q.lower().split())
    )


def _row(entry: Entry) -> dict[str, Any]:
    """An entry with its numbers as words."""
    state = entry.state
    done = state.step / state.total_steps if state.step is not None and state.total_steps else None
    return {
        "entry": entry,
        "reward": number(entry.reward),
        "kl": number(entry.kl),
        "score": number(entry.scores[-1][1]) if entry.scores else "–",
        "course": sparkline(entry.scores),
        "done": None if done is None else min(max(done, 0.0), 1.0),
        "started": entry.started[:16].replace("T", " ") or "–",
        "age": in_words(max(time.time() - state.changed, 0.0)) if state.changed else "–",
    }
