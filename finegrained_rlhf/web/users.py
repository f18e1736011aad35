"""Routes of the section "My notes": what is known of one user, who sees it, corrects it and has it forgotten.

Who it is, is settled outside of the page: by the settings of the application, or by the proxy before it. No address and
no form names a user, so that nobody is shown another's notes.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import parse_qsl

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.exceptions import HTTPException

from finegrained_rlhf.personalization.store.opening import open_memory
from finegrained_rlhf.personalization.store.protocol import (
    NOTE_DECISION,
    Event,
    MemoryStore,
    Note,
    NoteAction,
    NoteConflictError,
    NoteDecision,
)
from finegrained_rlhf.web.page import Section, render

router = APIRouter()
_OFFERED: dict[str, tuple[NoteAction, ...]] = {
    "used": ("correct", "hold", "delete"),
    "held": ("release", "delete"),
    "expired": ("release", "delete"),
    "deleted": (),
}
"""What the page offers for a note, by its state."""
_FIELD = "field."
_NUMBER = re.compile("[0-9]{1,16}")


def _begin(app: FastAPI) -> None:
    app.state.memory = open_memory(app.state.settings.memory)


SECTION = Section("My notes", "/notes", router, _begin)


def _memory(request: Request) -> MemoryStore:
    memory: MemoryStore = request.app.state.memory
    return memory


def _user(request: Request) -> str:
    """Who asks. Raises HTTPException where the proxy does not say."""
    settings = request.app.state.settings
    if settings.user_header is None:
        return str(settings.user)
    try:  # a header comes as Latin-1, whatever its bytes are
        (name,) = (value.encode("latin-1").decode() for value in request.headers.getlist(settings.user_header))
    except ValueError:
        name = ""
    if not name.strip():
        raise HTTPException(403, "The proxy does not say who asks.")
    return name


async def _form(request: Request) -> dict[str, str]:
    body = (await request.body()).decode("utf-8", "replace")
    return dict(parse_qsl(body, keep_blank_values=True))


User = Annotated[str, Depends(_user)]
Form = Annotated[dict[str, str], Depends(_form)]


@router.get("/notes")
def notes(request: Request, user: User) -> HTMLResponse:
    """The page of a user."""
    return _page(request, user)


@router.get("/notes/export")
def export(request: Request, user: User) -> Response:
    """All that is stored of the user, as a file."""
    data = _memory(request).export_user(user)
    return JSONResponse(data, headers={"Content-Disposition": 'attachment; filename="notes.json"'})


@router.post("/notes/decide")
def decide(request: Request, user: User, form: Form) -> Response:
    """Correct, hold, release or delete a note; then the page again."""
    action, version = form.get("action", ""), form.get("version", "")
    if action not in {name for names in _OFFERED.values() for name in names} or not _NUMBER.fullmatch(version):
        raise HTTPException(422, "Expected an action on a version of a note.")
    handle, key, body = _memory(request).reader(user), form.get("note", ""), {}
    if action == "correct":
        body = {name.removeprefix(_FIELD): _lines(text) for name, text in form.items() if name.startswith(_FIELD)}
        note = handle.note(key, unused=True)
        if note is not None and note.version == int(version):
            says = {name: _lines(str(text)) for name, text in note.body.items()}
            body = {name: text for name, text in body.items() if text != says.get(name)}
            if not body:  # nothing was written anew
                return RedirectResponse("/notes", 303)
    try:
        handle.decide(NoteDecision(key, action, body, by="user", expected=int(version)))
    except NoteConflictError:
        return _page(request, user, 409, "The note has changed meanwhile. This is what it says now.")
    return RedirectResponse("/notes", 303)


@router.post("/notes/forget")
def forget(request: Request, user: User, form: Form) -> Response:
    """Forget all of the user, who has written the name that is shown."""
    if form.get("name") != user:
        return _page(request, user, 422, "Nothing was forgotten: write the name as it stands there.")
    _memory(request).forget(user)
    return RedirectResponse("/notes", 303)


def _page(request: Request, user: str, status: int = 200, problem: str = "") -> HTMLResponse:
    memory = _memory(request)
    handle, consent = memory.reader(user), memory.consent(user)
    notes = handle.notes(unused=True)  # before the events, so that all that they rest on is there
    events, evidence = {event.id: event for event in handle.events()}, handle.evidence()
    earlier: dict[str, list[dict[str, Any]]] = {}
    for note in handle.history():
        earlier.setdefault(note.key, []).append(_shown(note))
    rows = [
        {
            **_shown(note),
            "actions": _OFFERED[note.state],
            "events": [
                {"kind": event.kind, "at": _time(event.at), "says": _said(event)}
                for version, number in evidence.get(note.key, [])
                if version == note.version and (event := events.get(number)) is not None
            ],
            "earlier": earlier.get(note.key, [])[::-1],
        }
        for note in notes[::-1]
    ]
    values = {"user": user, "notes": rows, "events": len(events), "consent": consent, "problem": problem}
    return render(request, "users/notes.html", status=status, **values)


def _lines(text: str) -> str:
    """A text with the line ends that a browser's form has lost."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _shown(note: Note) -> dict[str, Any]:
    times = {"since": _time(note.valid_from), "until": _time(note.valid_to)}
    return {"key": note.key, "version": note.version, "state": note.state, "says": _fields(note.body), **times}


def _fields(body: Any) -> list[tuple[str, str, bool]]:
    """Name, text and whether it can be written anew, of each field of a body but the encoder's name."""
    return [(key, str(value), isinstance(value, str)) for key, value in body.items() if key != "encoder"]


def _said(event: Event) -> list[tuple[str, str, bool]]:
    """The fields of an event; of a decision on a note, what was decided and by whom."""
    if event.kind != NOTE_DECISION:
        return _fields(event.body)
    kept = {key: event.body[key] for key in ("action", "by")}
    return _fields({**kept, **event.body["body"]})


def _time(at: float | None) -> str:
    return "" if at is None else datetime.fromtimestamp(at, UTC).isoformat(" ", "minutes").removesuffix("+00:00")
