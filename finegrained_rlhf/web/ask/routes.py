"""Routes of the section "Ask": its page, answers, the text around a place, and what people say of an answer."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.records import SpanError
from finegrained_rlhf.feedback.taxonomy import QA_FEEDBACK
from finegrained_rlhf.inscit.asking.records import DocumentAnswer
from finegrained_rlhf.text.segmentation import Span
from finegrained_rlhf.web.ask.desk import Desk
from finegrained_rlhf.web.page import Section, render
from finegrained_rlhf.web.playground.marks import add_mark

FEEDBACK = "ask_feedback.json"
"""Name of the feedback file, in the directory that is served."""
BAD = "Irrelevant"
"""What a thumb down says of the whole answer, and an edit of every sentence that it does not keep."""
_AROUND = 1_500  # characters of a source before and behind a place
Name = Annotated[str, Field(min_length=1, max_length=1000)]
Text = Annotated[str, Field(max_length=20_000)]
Place = Annotated[int, Field(ge=0, lt=2**31)]
router = APIRouter()


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Asked(_Body):
    """A question to an index; `session` goes on with a conversation."""

    index: Name
    question: Annotated[str, Field(min_length=1, max_length=2_000)]
    session: Annotated[str, Field(max_length=100)] | None = None


class Said(_Body):
    """What somebody says of an answer: `up`, `down`, a `mark` of a piece, or an `edit`, the answer as it should be."""

    session: Name
    turn: Place
    verdict: Literal["up", "down", "mark", "edit"]
    start: Place = 0
    end: Place = 0
    type: Name = BAD
    explanation: Annotated[str, Field(max_length=10_000)] = ""
    text: Text = ""


def _begin(app: FastAPI) -> None:
    app.state.desk = Desk(app.state.settings.directory, app.state.settings.answering)


SECTION = Section("Ask", "/ask", router, _begin)


def _desk(request: Request) -> Desk:
    desk: Desk = request.app.state.desk
    return desk


@router.get("/ask")
def page(request: Request) -> HTMLResponse:
    """The page; `?index=NAME` chooses."""
    names = _desk(request).names()
    chosen = request.query_params.get("index", "")
    kinds = [kind for category in QA_FEEDBACK.categories.values() for kind in category.types.values()]
    chosen = chosen if chosen in names else next(iter(names), "")
    return render(request, "ask/ask.html", names=names, chosen=chosen, kinds=kinds)


@router.post("/ask/answers")
def answers(request: Request, asked: Asked) -> JSONResponse:
    """Answer a question of a conversation."""
    id, session = _desk(request).session(asked.index, asked.session)
    answer = session.ask(asked.question)
    looked = [
        {
            "text": one.passage.text,
            "titles": list(one.passage.titles),
            "sentences": list(map(list, one.passage.sentences)),
        }
        for one in answer.searched.passages
    ]
    turn = next(n for n, one in enumerate(session.turns) if one.answer is answer)  # others may ask in it meanwhile
    return JSONResponse({"session": id, "turn": turn, "looked": looked, **answer.row()})


@router.get("/ask/source")
def source(request: Request, index: Name, file: Name, start: Place = 0, end: Place = 0) -> JSONResponse:
    """The text of a document around a place, and where it begins."""
    text = _desk(request).assistant(index).index.source(file)
    first, last = max(0, start - _AROUND), min(len(text), max(start, end) + _AROUND)
    return JSONResponse({"file": file, "first": first, "text": text[first:last], "characters": len(text)})


@router.post("/ask/feedback")
def feedback(request: Request, said: Said) -> JSONResponse:
    """Add what somebody says of an answer to the feedback file of the directory."""
    desk = _desk(request)
    turns = desk.known_session(said.session).turns
    if said.turn >= len(turns):
        raise DataError("there is no such answer", field="turn")
    answer = turns[said.turn].answer
    given = _given([one.passage.record() for one in answer.searched.passages])
    correction = said.text.strip() if said.verdict == "edit" else None
    if correction == "":
        raise DataError("expected the answer as it should be", field="text")
    places = {"mark": [(said.start, said.end)], "down": [(0, len(answer.answer))]}.get(said.verdict, [])
    kind, why = said.type if said.verdict == "mark" else BAD, said.explanation.strip() or None
    if correction is not None:
        places, why = _changed(answer, correction), why or f"replaced by: {correction}"
    marks: list[SpanError | None] = [SpanError(*place, kind, why) for place in places]
    for mark in marks or [None]:
        file = desk.directory / FEEDBACK
        record = add_mark(file, answer.searched.question, given, answer.answer, mark, QA_FEEDBACK, correction)
    count = sum(len(one.errors) for one in record.marked.values())
    return JSONResponse({"file": FEEDBACK, "marks": count})


def _changed(answer: DocumentAnswer, correction: str) -> list[Span]:
    """The sentences of an answer that do not stand in a correction, word by word."""
    kept, at, changed = f" {' '.join(correction.split())} ", 0, []
    for sentence in answer.sentences:
        if f" {' '.join(sentence.text.split())} " not in kept:
            changed.append((at, at + len(sentence.text)))
        at += len(sentence.text) + 1
    return changed


def _given(passages: list[Passage]) -> list[Passage]:
    """The passages that an answer was given from, with their titles in words."""
    return [Passage(one.id, one.title.replace(" [SEP] ", ": "), one.spans) for one in passages]
