"""The application: its sections behind one guard, its style sheets and scripts, and a page for every error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware

from finegrained_rlhf.core.errors import FineGrainedError
from finegrained_rlhf.inscit.asking.job import AskSettings
from finegrained_rlhf.report.charts.heatmap import heat_style
from finegrained_rlhf.runtime.remote.chat import EndpointGenerator
from finegrained_rlhf.web.address import LOOPBACK_NAMES
from finegrained_rlhf.web.ask.routes import SECTION as ASK
from finegrained_rlhf.web.guard import SECURITY_HEADERS, Guard
from finegrained_rlhf.web.marking.routes import SECTION as MARKING
from finegrained_rlhf.web.marking.routes import insiders_only
from finegrained_rlhf.web.page import HERE, Section, render
from finegrained_rlhf.web.playground.routes import SECTION as PLAYGROUND
from finegrained_rlhf.web.runs.routes import SECTION as RUNS
from finegrained_rlhf.web.users import SECTION as USERS

SECTIONS: tuple[Section, ...] = (RUNS, PLAYGROUND, ASK, MARKING)
"""What the navigation shows, in order; the first one is the first page."""


@dataclass(frozen=True)
class Settings:
    """What the application is told.

    Attributes:
        directory: whose runs are shown, resolved; nothing outside it is read.
        names: host names beside those of loopback by which it may be asked.
        memory: of users, one of whom is shown what is known of them; None shows nobody anything.
        user: who that is.
        user_header: the header in which the proxy says who asks, instead.
        reachable: whether other machines can ask it, by TLS of its own or a proxy: sessions then travel over TLS alone,
            and runs and playground are for reviewers and owners where there are accounts.
        tls: whether the TLS is its own: without an account nobody sees anything then.
        trusted: classes beside the project's own that rewards of runs may name in the playground.
        answering: how the page "Ask" answers; None: with the models that are found by themselves.
        played: a model behind an endpoint, one more policy of the playground.
        policies: further policies of the playground, each name with its model's directory.
    """

    directory: Path
    names: Sequence[str] = ()
    memory: str | None = None
    user: str | None = None
    user_header: str | None = None
    reachable: bool = False
    tls: bool = False
    trusted: Sequence[str] = ()
    answering: AskSettings | None = None
    played: EndpointGenerator | None = None
    policies: Mapping[str, Path] = field(default_factory=dict)


def create_app(settings: Settings) -> FastAPI:
    """The application; `app.state.settings` and `app.state.sections` are for its routes."""
    app = FastAPI(title="finegrained_rlhf", docs_url=None, redoc_url=None, openapi_url=None)
    sections = SECTIONS if settings.memory is None else (*SECTIONS, USERS)
    app.state.settings, app.state.sections = settings, sections
    for section in sections:
        section.begin(app)
        by_itself = section is MARKING or (section is USERS and settings.user_header is not None)
        app.include_router(section.router, dependencies=[] if by_itself else [Depends(insiders_only)])
    app.add_api_route("/", _first_page, include_in_schema=False)
    app.add_api_route("/healthz", _health)
    app.add_api_route("/static/heat.css", _heat_style)
    report = Path(str(resources.files("finegrained_rlhf.report").joinpath("assets")))
    annotation = Path(str(resources.files("finegrained_rlhf.annotation").joinpath("assets")))
    app.mount("/static/report", StaticFiles(directory=report))
    app.mount("/static/annotation", StaticFiles(directory=annotation))
    app.mount("/static", StaticFiles(directory=HERE / "assets"))
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*LOOPBACK_NAMES, *settings.names], www_redirect=False)
    app.add_middleware(Guard)  # around the check of the host: its answer has the headers too
    for kind, handler in _HANDLERS.items():
        app.add_exception_handler(kind, handler)
    return app


def _first_page() -> RedirectResponse:
    return RedirectResponse(SECTIONS[0].path)


def _health() -> dict[str, str]:
    """For whoever starts the application and waits for it."""
    return {"status": "ok", "version": metadata.version("finegrained-rlhf")}


def _heat_style() -> Response:
    return PlainTextResponse(heat_style(), media_type="text/css")


def _error(request: Request, status: int, problem: str) -> Response:
    """An error as a page where a browser asks for one, else as JSON."""
    if "text/html" in request.headers.get("accept", ""):
        title = HTTPStatus(status).phrase
        return render(request, "error.html", status=status, title=title, problem=problem)
    return JSONResponse({"error": problem}, status)


def _of_http(request: Request, error: Any) -> Response:
    known = HTTPStatus(error.status_code).phrase == error.detail
    answer = _error(request, error.status_code, "There is no such page." if known else str(error.detail))
    answer.headers.update(error.headers or {})
    return answer


def _of_request(request: Request, error: Any) -> Response:
    problem = error.errors()[0]
    return _error(request, 422, f"{'.'.join(str(part) for part in problem['loc'][1:])}: {problem['msg']}")


def _of_data(request: Request, error: Any) -> Response:
    return _error(request, 422, str(error))


def _of_bug(request: Request, error: Any) -> Response:
    """Answered outside every middleware, so that the headers are put on here."""
    answer = _error(request, 500, "Something is wrong in the application; its console says where.")
    answer.headers.update(SECURITY_HEADERS)
    return answer


_HANDLERS: dict[Any, Any] = {
    HTTPException: _of_http,
    RequestValidationError: _of_request,
    FineGrainedError: _of_data,
    Exception: _of_bug,
}
