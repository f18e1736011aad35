"""The application: scores, what there is to score with, health and metrics, behind a key and a limit of size."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from importlib import metadata
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from finegrained_rlhf.core.errors import FineGrainedError
from finegrained_rlhf.core.records import SegmentScores
from finegrained_rlhf.rewards.checks import error_free_from, look_ahead_of_scorer, value_range
from finegrained_rlhf.rewards.credit import deciding
from finegrained_rlhf.rewards.protocol import Scorer
from finegrained_rlhf.rewards.served import WIRE
from finegrained_rlhf.web.guard import limited
from finegrained_rlhf.web.rewards.rounds import QueueFull, Rounds
from finegrained_rlhf.web.rewards.wire import Component, Problem, ResponseScores, ScoresAnswer, ScoresRequest

_OPEN = ("/healthz",)
"""What is answered without a key."""
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": meaning}
    for status, meaning in {
        400: "the body is no JSON",
        401: "there is no key, or a wrong one",
        404: "there is no such component",
        408: "the body did not go on",
        413: "the request is too large",
        422: "the request is no request, or the scorer refuses it",
        429: "too many responses wait; Retry-After says when to come again",
        500: "scoring failed; the server's log says where",
    }.items()
}


def described(name: str, scorer: Scorer, version: str) -> Component:
    """What a component is, from what its scorer declares after `setup`."""
    return Component(
        name=name,
        version=version,
        error_free_from=error_free_from(scorer),
        value_range=value_range(name, scorer),
        reads_on=bool(getattr(scorer, "reads_on", True)),
        look_ahead=look_ahead_of_scorer(name, scorer),
        counted=list(getattr(scorer, "counted", ())),
    )


def create_app(
    rounds: Rounds,
    components: Mapping[str, Component],
    *,
    keys: Sequence[str] = (),
    body_bytes: int = 2**26,
    hosts: Sequence[str] = ("*",),
) -> FastAPI:
    """The application.

    Args:
        rounds: score; of these components.
        components: by name.
        keys: one of which a request must have as its bearer token; none: no request needs one.
        body_bytes: the largest body of a request.
        hosts: names by which the server may be asked.
    """
    app = FastAPI(
        title="Rewards of finegrained-rlhf", version=f"{WIRE}", docs_url=None, redoc_url=None, responses=_PROBLEMS
    )

    @app.post(f"/v{WIRE}/scores")
    async def scores(request: ScoresRequest, connection: Request) -> ScoresAnswer:
        """Score responses; asked again, a request has the same answer."""
        component = components.get(request.component)
        if component is None:
            raise HTTPException(404, f"no component {request.component!r}; there are {', '.join(components)}")
        prompts = [prompt.prompt() for prompt in request.prompts]
        if request.responses:
            prompts = [prompts[response.prompt] for response in request.responses]
        texts = [response.text for response in request.responses]
        result = await _unless_gone(connection, rounds.submit(request.component, prompts, texts))
        places = deciding(result, texts, component.look_ahead)
        rows = zip(result.spans, result.values, places, strict=True)
        results = [
            None
            if row in result.unscored
            else ResponseScores.model_construct(
                segments=list(spans), values=[float(value) for value in values], decided_at=list(decided)
            )
            for row, (spans, values, decided) in enumerate(rows)
        ]
        counts = {name: float(count) for name, count in result.counts.items()}
        return ScoresAnswer(component=component, whole_response=result.whole_response, results=results, counts=counts)

    @app.get(f"/v{WIRE}/components")
    async def list_components() -> list[Component]:
        """What can be asked for."""
        return list(components.values())

    @app.get("/healthz")
    async def health() -> dict[str, str]:
        """For whoever starts the server and waits for it."""
        return {"status": "ok", "version": metadata.version("finegrained-rlhf")}

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> str:
        """Counters in Prometheus' text format."""
        return _metrics(rounds, components)

    app.add_middleware(Gate, keys=keys, body_bytes=body_bytes)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False)
    for kind, handler in _HANDLERS.items():
        app.add_exception_handler(kind, handler)
    return app


async def _unless_gone(connection: Request, scores: Future[SegmentScores]) -> SegmentScores:
    """The scores; those of a client that has gone, to ask again perhaps, are not made if they only wait."""
    waiting = asyncio.wrap_future(scores)
    gone: asyncio.Future[Any] = asyncio.ensure_future(connection.receive())
    await asyncio.wait(set[asyncio.Future[Any]]((waiting, gone)), return_when=asyncio.FIRST_COMPLETED)
    gone.cancel()
    if not waiting.done():
        waiting.cancel()
        raise HTTPException(408, "the client has gone")
    return waiting.result()


def _metrics(rounds: Rounds, components: Mapping[str, Component]) -> str:
    lines = ["# TYPE finegrained_responses_scored_total counter"]
    lines += [f'finegrained_responses_scored_total{{component="{name}"}} {rounds.scored[name]}' for name in components]
    for name, kind, value in (
        ("rounds_total", "counter", rounds.done),
        ("requests_refused_total", "counter", rounds.refused),
        ("scoring_seconds_total", "counter", round(rounds.busy_s, 6)),
        ("responses_waiting", "gauge", rounds.waiting),
    ):
        lines += [f"# TYPE finegrained_{name} {kind}", f"finegrained_{name} {value}"]
    return "\n".join(lines) + "\n"


class Gate:
    """ASGI middleware: refuses a request without a key, and one that is too large, before anything of it is read.

    Args:
        app: what is behind it.
        keys: as in `create_app`.
        body_bytes: as in `create_app`.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str], body_bytes: int) -> None:
        self.app, self.body_bytes = app, body_bytes
        self._tokens = [f"Bearer {key}".encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refusal = self._refusal(scope["path"], Headers(scope=scope))
        await (refusal or self.app)(scope, limited(receive, self.body_bytes, self._too_large), send)

    @property
    def _too_large(self) -> str:
        return f"the request has more than {self.body_bytes:,} bytes; expected fewer responses in one (batch_size)"

    def _refusal(self, path: str, headers: Headers) -> Response | None:
        given = headers.get("authorization", "").encode()
        admitted = [
            hmac.compare_digest(given, token) for token in self._tokens
        ]  # every one, so that time tells nothing
        if admitted and not any(admitted) and path not in _OPEN:
            return JSONResponse({"error": "expected a key: Authorization: Bearer KEY"}, 401)
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > self.body_bytes:
            return JSONResponse({"error": self._too_large}, 413)
        return None


def _problem(status: int, problem: str, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse({"error": problem}, status, headers)


def _of_request(request: Any, error: Any) -> Response:
    problem = error.errors()[0]
    place = ".".join(map(str, problem["loc"][1:])) or "expected a JSON object, sent as Content-Type: application/json"
    return _problem(422, f"{place}: {problem['msg']}")


def _of_full_queue(request: Any, error: Any) -> Response:
    return _problem(429, str(error), {"Retry-After": str(error.retry_after_s)})


_HANDLERS: dict[Any, Any] = {
    HTTPException: lambda request, error: _problem(error.status_code, str(error.detail)),
    RequestValidationError: _of_request,
    QueueFull: _of_full_queue,
    FineGrainedError: lambda request, error: _problem(422, str(error)),
    Exception: lambda request, error: _problem(500, f"{type(error).__name__}; the server's log says where"),
}
