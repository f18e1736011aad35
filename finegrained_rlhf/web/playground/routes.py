"""Routes of the section "Playground": its page, what a run offers, answers with their rewards, and marks."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from finegrained_rlhf.core.records import Greedy, Sample
from finegrained_rlhf.feedback.prompt_files import PromptInput, prompt_of_row
from finegrained_rlhf.feedback.records import SpanError
from finegrained_rlhf.report.charts.heatmap import Group, heat_panel
from finegrained_rlhf.runtime.directory.samples import SampleRecord, SampleSegment
from finegrained_rlhf.web.page import Section, render
from finegrained_rlhf.web.playground.choices import Choices
from finegrained_rlhf.web.playground.marks import FEEDBACK, add_mark

if TYPE_CHECKING:  # what answers needs torch, which pages do without
    from finegrained_rlhf.web.playground.engine import Answer, Playground

router = APIRouter()
_ANSWERS = 128
"""Answers of one request, all policies together."""
Name = Annotated[str, Field(min_length=1, max_length=1000)]
Text = Annotated[str, Field(max_length=100_000)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Message(_Body):
    role: Annotated[str, Field(max_length=40)]
    content: Text


class Question(_Body):
    """A question with passages, a conversation, or a text, as a prompt file has it; other keys are refused."""

    id: Annotated[str | None, Field(max_length=1000)] = None
    question: Text | None = None
    passages: Annotated[list[list[Text]], Field(max_length=100)] | None = None
    messages: Annotated[list[_Message], Field(max_length=100)] | None = None
    text: Text | None = None

    def prompt(self) -> PromptInput:
        """The prompt. Raises DataError where it is none."""
        return prompt_of_row(self.model_dump(exclude_none=True), "question")


class Asked(_Body):
    """What policies are asked, and what scores them."""

    row: Question
    reward: Name
    policies: Annotated[list[Name], Field(min_length=1, max_length=8)]
    samples: Annotated[int, Field(ge=1, le=16)] = 4
    temperature: Annotated[float, Field(ge=0, le=5)] = 1.0
    longest: Annotated[int, Field(ge=1, le=2048)] = 200
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0


class _Written(_Body):
    policy: Annotated[str, Field(max_length=1000)] = ""
    text: Text
    tokens: Annotated[int, Field(ge=0, le=10**6)] = 0
    finished: bool = True
    edited: bool = False


class Scored(_Body):
    """Answers to be scored as they stand."""

    row: Question
    reward: Name
    answers: Annotated[list[_Written], Field(min_length=1, max_length=_ANSWERS)]


class Mark(_Body):
    """Something wrong in an answer."""

    row: Question
    reward: Name
    answer: Text
    start: Annotated[int, Field(ge=0)]
    end: Annotated[int, Field(ge=1)]
    type: Name
    explanation: Annotated[str, Field(max_length=10_000)] = ""


def _begin(app: FastAPI) -> None:
    settings = app.state.settings
    app.state.choices = Choices(settings.directory, settings.trusted, settings.played, settings.policies)
    app.state.opening = threading.Lock()


SECTION = Section("Playground", "/playground", router, _begin)


def _choices(request: Request) -> Choices:
    choices: Choices = request.app.state.choices
    return choices


def _playground(request: Request) -> Playground:
    """The one playground of an application, made when a model is first asked."""
    from finegrained_rlhf.web.playground.engine import Playground

    state = request.app.state
    with state.opening:
        if not hasattr(state, "playground"):
            state.playground = Playground(state.choices)
    made: Playground = state.playground
    return made


@router.get("/playground")
def page(request: Request) -> HTMLResponse:
    """The page; `?reward=RUN` and `?policy=NAME` choose."""
    choices = _choices(request)
    rewards, policies = choices.rewards(), choices.policies()
    reward = request.query_params.get("reward", "")
    reward = reward if reward in rewards else choices.with_several(rewards)
    asked = request.query_params.getlist("policy")
    chosen = [name for name in policies if name in (asked or (reward, choices.initial(reward)))]
    return render(request, "playground/play.html", rewards=rewards, policies=policies, reward=reward, chosen=chosen)


@router.get("/playground/run")
def run(request: Request, name: str) -> JSONResponse:
    """What a run offers: questions, the length of its answers, and what can be marked. Loads no model."""
    choices = _choices(request)
    taxonomy = choices.taxonomy(name)
    types = [
        {"name": kind.name, "label": kind.label, "description": kind.description, "category": category.name}
        for category in taxonomy.categories.values()
        for kind in category.types.values()
    ]
    return JSONResponse({"examples": choices.examples(name), "longest": choices.longest(name), "types": types})


@router.post("/playground/answers")
def answers(request: Request, asked: Asked) -> JSONResponse:
    """Let policies answer, and score what they say."""
    playground, item = _playground(request), asked.row.prompt()
    decoding = Sample(asked.samples, asked.temperature, 0, 1.0) if asked.temperature else Greedy()
    work = partial(playground.answers, item, asked.policies, asked.reward, decoding, asked.longest, asked.seed)
    return _answered(playground, item, asked.reward, work)


@router.post("/playground/scores")
def scores(request: Request, scored: Scored) -> JSONResponse:
    """Score answers that a person has changed beside those that stay."""
    playground, item = _playground(request), scored.row.prompt()

    def work() -> list[Answer]:
        from finegrained_rlhf.inference.generator import Response

        written = [
            (
                one.policy,
                Response(one.text, playground.tokens(one.policy, one.text) if one.edited else one.tokens, one.finished),
            )
            for one in scored.answers
        ]
        return playground.scores(item, scored.reward, written)

    return _answered(playground, item, scored.reward, work)


@router.post("/playground/marks")
def marks(request: Request, mark: Mark) -> JSONResponse:
    """Add a mark to the feedback file of the directory."""
    choices, item = _choices(request), mark.row.prompt()
    known = item.metadata
    error = SpanError(mark.start, mark.end, mark.type, mark.explanation.strip() or None)
    record = add_mark(
        choices.directory / FEEDBACK,
        known.get("question") or item.text,
        known.get("passages", ()),
        mark.answer,
        error,
        choices.taxonomy(mark.reward),
    )
    count = sum(len(feedback.errors) for feedback in record.marked.values())
    return JSONResponse({"file": FEEDBACK, "marks": count})


def _answered(playground: Playground, item: PromptInput, reward: str, work: Any) -> JSONResponse:
    from finegrained_rlhf.web.playground.engine import BusyError

    try:
        future = playground.submit(lambda: (work(), playground.components(reward)))
    except BusyError as error:
        return JSONResponse({"error": str(error)}, 503, {"Retry-After": "5"})
    given, components = future.result()
    record = [_sample(item, number, answer) for number, answer in enumerate(given)]
    cells = [(f"answer {number}", one) for number, one in enumerate(record, start=1)]
    html = heat_panel("answers", [Group(item.text, cells)], [part.name for part in components], tools=False)
    return JSONResponse(
        {"components": [vars(part) for part in components], "answers": [_row(answer) for answer in given], "html": html}
    )


def _sample(item: PromptInput, number: int, answer: Answer) -> SampleRecord:
    rewarded = answer.rewarded
    segments = [SampleSegment(s.component, s.start, s.end, s.raw, s.weighted) for s in rewarded.segments]
    text = rewarded.response.text
    return SampleRecord(item.id, number, item.text, text, segments, unscored=rewarded.unscored)


def _row(answer: Answer) -> dict[str, Any]:
    rewarded, response = answer.rewarded, answer.rewarded.response
    return {
        "policy": answer.policy,
        "text": response.text,
        "tokens": response.tokens,
        "finished": response.finished,
        "closed": rewarded.closed,
        "unscored": rewarded.unscored,
        "segments": [
            {"component": s.component, "start": s.start, "end": s.end, "raw": s.raw, "value": s.normalised}
            for s in rewarded.segments
        ],
    }
