"""An endpoint in a thread that streams what it is told to whoever asks for a stream."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from finegrained_rlhf.runtime import EndpointGenerator, RemoteConfig


class Endpoint(ThreadingHTTPServer):
    """Streams `lines` to whoever asks for a stream, and answers others whole; after `busy` refusals."""

    daemon_threads = True

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.lines: list[str] = []
        self.busy = 0
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1/chat/completions"

    def generator(self, **settings: Any) -> EndpointGenerator:
        return EndpointGenerator(RemoteConfig(self.url, backoff_s=0.01, budget_s=5.0), "m", **settings)


class Handler(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        if len(self.server.bodies) <= self.server.busy:
            self.send_response(503)
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream" if body.get("stream") else "application/json")
        self.end_headers()
        whole = json.dumps({"choices": [{"message": {"content": "whole"}, "finish_reason": "stop"}]})
        for line in self.server.lines if body.get("stream") else [whole]:
            self.wfile.write(f"{line}\n\n".encode())
            self.wfile.flush()

    def log_message(self, *_: Any) -> None:
        """Quiet."""


def event(text: str | None, finish: str | None = None) -> str:
    return "data: " + json.dumps(
        {"choices": [{"delta": {} if text is None else {"content": text}, "finish_reason": finish}]}
    )
