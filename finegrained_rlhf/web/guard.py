"""What every answer of the application carries, and which requests are refused before anything looks at them."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_BYTES = 4 * 2**20
"""The largest body of a request."""
BODY_PAUSE_S = 30
"""Seconds after which a request is given up whose body does not go on: a server that ends waits for no such one."""
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
"""Headers of every answer: no script or style but the application's own files, nothing loaded from elsewhere, no frame
around a page."""
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


def limited(receive: Receive, most: int, problem: str) -> Receive:
    """`receive` that ends a request whose body has more than `most` bytes with status 413 and the problem, and one of
    whose body nothing came for `BODY_PAUSE_S` seconds with status 408.
    """
    read, whole = 0, False

    async def receive_limited() -> Message:
        nonlocal read, whole
        try:
            message = await (receive() if whole else asyncio.wait_for(receive(), BODY_PAUSE_S))
        except TimeoutError:
            raise HTTPException(408, f"nothing of the request came for {BODY_PAUSE_S} seconds") from None
        read, whole = read + len(message.get("body", b"")), not message.get("more_body", False)
        if read > most:
            raise HTTPException(413, problem)
        return message

    return receive_limited


class Guard:
    """ASGI middleware: refuses writes that another site's page asked for and oversized bodies, and adds the headers.

    A browser says with every write which page it comes from (`Origin`); one whose host is not the one that was asked is
    refused. Programs that are no browser send none and pass.

    Args:
        app: what is guarded.
        body_bytes: the largest body of a request.
    """

    def __init__(self, app: ASGIApp, body_bytes: int = BODY_BYTES) -> None:
        self.app, self.body_bytes = app, body_bytes
        self._limit = f"The request has more than {body_bytes:,} bytes."

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                outgoing = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    outgoing.setdefault(name, value)
                outgoing.setdefault("Cache-Control", "no-store")
            await send(message)

        refusal = self._refusal(scope["method"], headers)
        await (refusal or self.app)(scope, limited(receive, self.body_bytes, self._limit), send_with_headers)

    def _refusal(self, method: str, headers: Headers) -> PlainTextResponse | None:
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > self.body_bytes:
            return PlainTextResponse(self._limit, status_code=413)
        origin = headers.get("origin")
        if method not in _SAFE_METHODS and origin is not None and urlsplit(origin).netloc != headers.get("host"):
            return PlainTextResponse("This was asked for by a page of another site.", status_code=403)
        return None
