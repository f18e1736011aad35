"""A user's memory as an HTML file: what `finegrained show-user-memory` runs.

All texts are users' and models': they are escaped when they enter the page.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, ClassVar

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_text
from finegrained_rlhf.core.markers import OutputFile, at_least
from finegrained_rlhf.personalization.span_feedback import EDIT, FIRST_EDIT, edit_cost, latest_edits
from finegrained_rlhf.personalization.store.opening import open_memory
from finegrained_rlhf.personalization.store.protocol import Consent, Event, Note, UserHandle
from finegrained_rlhf.report.charts.svg import ROUND, Chart, Line, figure
from finegrained_rlhf.report.elements.html import Html, el, isolated, join, number
from finegrained_rlhf.report.elements.page import PageSection, details, page, table

_NAMES = {
    "context": "context",
    "instruction": "instruction",
    "question": "question of the agent",
    "draft": "draft",
    "edited": "what the user made of it",
    "action": "action",
    "remark": "what the user said",
    "preference": "preference that it was written by",
    "cues": "what the notes said of the matter",
    "text": "note",
    FIRST_EDIT: "after an edit of this draft",
}
"""Fields of events in the order in which they are shown; others follow."""
_OF_NOTES = {**_NAMES, "preference": "preference"}
_HIDDEN = ("encoder", "notes")
_STYLE = """
article h3{margin-top:0}
dl{display:grid;grid-template-columns:minmax(9em,max-content) 1fr;gap:4px 20px;margin:0 0 8px;font-size:15px}
dt{color:var(--soft);font-size:13px}
dd{margin:0;min-width:0}
@media(max-width:600px){dl{grid-template-columns:1fr}dd{margin-bottom:6px}}
article:target{background:var(--wash)}
"""


def user_page(name: str, consent: Consent | None, handle: UserHandle, last: int) -> Html:
    """A whole HTML document.

    Args:
        name: of the user.
        consent: what was decided.
        handle: of the user; it is read only.
        last: so many events are shown.
    """
    events, notes, evidence, earlier = handle.events(), handle.notes(unused=True), handle.evidence(), handle.history()
    anchors = {note.key: f"note-{place}" for place, note in enumerate(notes, start=1)}
    shown = events[-last:]
    there = {event.id: event for event in shown}
    edits = list(latest_edits(event for event in events if event.kind == EDIT).values())
    sections = [
        PageSection("curve", "What edits cost", "", _curve(edits)),
        PageSection(
            "notes",
            "Notes",
            "What is remembered, the latest change last, with the events that each version was derived from.",
            join(*(_note(note, anchors, evidence.get(note.key, []), earlier, events, there) for note in notes))
            if notes
            else el("p", "There is none.", class_="none"),
        ),
        PageSection(
            "rounds",
            "Rounds",
            f"{len(shown)} of {len(events)} events, the oldest first, with the notes that the agent went by.",
            join(*(_event(event, anchors, event_notes(event.id, evidence)) for event in shown)),
        ),
    ]
    title = join("Memory of ", isolated(name))
    return page(f"Memory of {name}", join(el("h1", title), _facts(consent, events, notes)), sections, _STYLE)


def event_notes(event: int, evidence: Mapping[str, Sequence[tuple[int, int]]]) -> list[str]:
    """Keys of the notes of which a version was derived from an event."""
    return [key for key, rows in evidence.items() if any(source == event for _, source in rows)]


def _facts(consent: Consent | None, events: Sequence[Event], notes: Sequence[Note]) -> Html:
    waiting = sum(not event.applied for event in events)
    if consent is None:
        decision = "no decision is recorded"
    else:
        may = "storing is allowed" if consent.store else "nothing may be stored"
        decision = f"{may}, training is {'allowed' if consent.train else 'not allowed'} ({_time(consent.at)})"
    rows: list[list[Any]] = [
        ["consent", decision],
        ["events", f"{len(events)}, not yet learnt from: {waiting}" if waiting else len(events)],
        ["notes", len(notes)],
        ["first and last event", f"{_time(events[0].at)} to {_time(events[-1].at)}" if events else "–"],
    ]
    return el("div", table([], rows, words=2), class_="fit")


def _curve(edits: Sequence[Event]) -> Html | None:
    """The cost of each draft's latest edit and their sum; None where there is none."""
    costs = [edit_cost(str(edit.body.get("draft", "")), str(edit.body.get("edited", ""))) for edit in edits]
    if not costs:
        return None
    rounds = range(1, len(costs) + 1)
    each = Line("", list(zip(rounds, (cost.normalised for cost in costs), strict=True)), 0, "rough")
    summed = Line("", list(zip(rounds, accumulate(cost.distance for cost in costs), strict=True)), 1)
    charts = [
        Chart(
            "Share of a draft that was edited",
            [each if len(costs) > 20 else Line("", each.points, 0, "dots")],
            x_label=ROUND,
            y_label="distance / longer text",
            y_range=(0.0, 1.0),
            note="By round: words and marks to insert, delete or replace, over those of the longer text.",
        ),
        Chart(
            "Cumulative cost",
            [summed],
            x_label=ROUND,
            y_label="words and marks",
            note=f"{sum(cost.distance == 0 for cost in costs)} of {len(costs)} drafts were left as they were.",
        ),
    ]
    return el("div", *map(figure, charts), class_="charts")


def _note(
    note: Note,
    anchors: Mapping[str, str],
    evidence: Sequence[tuple[int, int]],
    earlier: Sequence[Note],
    events: Sequence[Event],
    shown: Mapping[int, Event],
) -> Html:
    sources = [join(f"version {version} from ", _to_event(event, shown)) for version, event in evidence]
    used = [event.id for event in events if note.key in _used(event)]
    rows = [
        *_fields(note.body, _OF_NOTES),
        *([] if note.state == "used" else [("not in use", note.state)]),
        *([] if note.valid_to is None else [("holds until", _time(note.valid_to))]),
        *(
            (f"version {before.version}, until {_time(before.valid_to)}", _list(_fields(before.body, _OF_NOTES)))
            for before in earlier
            if before.key == note.key
        ),
        ("derived from", _listed(sources)),
        ("used in", _listed([_to_event(event, shown) for event in used]) if used else "no round that is stored"),
    ]
    title = join("Note ", isolated(note.key), el("span", f"version {note.version}", class_="unit"))
    return el("article", el("h3", title), _list(rows), id=anchors[note.key])


def _event(event: Event, anchors: Mapping[str, str], derived: Sequence[str]) -> Html:
    rows = _fields({**event.body, **{name: value for name, value in (event.used or {}).items() if value}})
    if event.kind == EDIT:
        cost = edit_cost(str(event.body.get("draft", "")), str(event.body.get("edited", "")))
        rows.append(("cost", f"{cost.distance} of {cost.longest} words and marks ({number(cost.normalised, 2)})"))
    if event.used is None:
        rows.append(("notes used", "not recorded"))
    else:
        rows.append(("notes used", _notes(_used(event), anchors) or "none"))
    learnt: Any = _notes(derived, anchors) or "nothing"
    waits = f"not yet, tried in vain: {event.tries}" if event.tries else "not yet"
    rows.append(("notes learnt", learnt if event.applied else waits))
    title = join(f"{event.id}. ", isolated(event.kind), el("span", _time(event.at), class_="unit"))
    return el("article", el("h3", title), _list(rows), id=f"event-{event.id}")


def _used(event: Event) -> list[str]:
    """Keys of the notes that an event says its round went by."""
    keys = (event.used or {}).get("notes")
    return [str(key) for key in keys] if isinstance(keys, list) else []


def _fields(body: Mapping[str, Any], known: Mapping[str, str] = _NAMES) -> list[tuple[str, Any]]:
    names = [name for name in known if name in body] + sorted(set(body) - set(known) - set(_HIDDEN))
    return [(known.get(name, name), _stored_value(body[name])) for name in names if body[name] != ""]


def _stored_value(value: Any) -> Html:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    shown = el("div", text, class_="said", dir="auto")
    return details(f"{text[:120]} …", shown) if len(text) > 600 else shown


def _notes(keys: Sequence[str], anchors: Mapping[str, str]) -> Html | None:
    if not keys:
        return None
    shown = [el("a", isolated(key), href=f"#{anchors[key]}") if key in anchors else isolated(key) for key in keys]
    return _listed(shown)


def _to_event(event: int, shown: Mapping[int, Event]) -> Html:
    return el("a", f"event {event}", href=f"#event-{event}") if event in shown else Html(f"event {int(event)}")


def _listed(items: Sequence[Html]) -> Html:
    return join(*(join(", " if place else None, item) for place, item in enumerate(items)))


def _list(rows: Sequence[tuple[str, Any]]) -> Html:
    return el("dl", *(join(el("dt", name), el("dd", value)) for name, value in rows))


def _time(at: float | None) -> str:
    """UTC, to the minute."""
    return "time not recorded" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")


@dataclass(frozen=True)
class ShowUserMemory(Settings):
    """Write one HTML page about one user: notes, what they were derived from, rounds, and what each rested on.

    The page is a copy of what a user said: `forget` does not reach it. Its owner alone can read the file.

    Attributes:
        memory: FILE of a `UserMemory`, or `postgresql://…`.
        user: whose memory, by name.
        output: HTML file.
        last: of all events, so many of the latest are shown; the curve has all.
    """

    every_process: ClassVar[bool] = False

    memory: str
    user: str
    output: OutputFile
    last: Annotated[int, at_least(1)] = 500

    def run(self) -> None:
        """Write the page and say where.

        Raises:
            DataError: there is no such memory or no such user.
            StoreError: the memory cannot be read.
        """
        memory = open_memory(self.memory)
        try:
            handle = memory.known(self.user)
            if handle is None:
                raise DataError("there is no such user in the memory", field="user")
            text = user_page(self.user, memory.consent(self.user), handle, self.last)
        finally:
            memory.close()
        write_text(Path(self.output), text, 0o600)
        print(f"memory of one user: {self.output}")
