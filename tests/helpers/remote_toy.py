"""Services in a thread, with their real schemas: Perspective and OpenAI-compatible endpoints of chats and embeddings.

They keep a quota, want a key, and fail as they are told to.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "the-secret-key-4711"


def toxicity(text: str) -> float:
    """What the fake service says of a text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") / 2**32


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_: Any) -> None:
        """Clients that are killed leave in the middle of a request."""


class FakeService:
    """Attributes:
    answer: makes the answer to a request's body; a dictionary, or a status with one.
    fault: is given the number of each request from 0 and its body, before it is answered; what it returns replaces the
        answer: a status and headers, or bytes of an answer that breaks off, or a dictionary. None answers.
    quota: requests a second, as a window of a tenth of a second; None: no limit.
    asked: how often each text got its true answer.
    """

    def __init__(self, answer: Callable[[dict[str, Any]], Any] | None = None, key: str | None = None) -> None:
        self.answer = answer or perspective
        self.key = key
        self.fault: Callable[[int, dict[str, Any]], Any] = lambda number, body: None
        self.quota: float | None = None
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.asked: Counter[str] = Counter()
        self.refused = 0
        self.busiest = self.connections = 0
        self._under_way = 0
        self._window, self._in_window = 0.0, 0
        self._lock = threading.Lock()
        self._httpd = _Server(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._httpd.server_address[1]}/analyze"
        threading.Thread(target=self._httpd.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def __enter__(self) -> FakeService:
        return self

    def __exit__(self, *_: Any) -> None:
        self._httpd.shutdown()
        self._httpd.server_close()

    def _over_quota(self) -> bool:
        if self.quota is None:
            return False
        now = time.monotonic()
        if now - self._window > 0.1:
            self._window, self._in_window = now, 0
        self._in_window += 1
        return self._in_window > self.quota / 10 + 1

    def _handler(fake: Any) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                fake.connections += 1

            def log_message(self, *_: Any) -> None: ...

            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"]))
                if len(content) < int(self.headers["Content-Length"]):  # the client has gone
                    self.close_connection = True
                    return
                body = json.loads(content)
                with fake._lock:
                    number = len(fake.requests)
                    fake.requests.append(body)
                    fake.headers.append(dict(self.headers))
                    fake.paths.append(self.path)
                    fake._under_way += 1
                    self.under_way = True
                    fake.busiest = max(fake.busiest, fake._under_way)
                    over = fake._over_quota()
                try:
                    self._serve(number, body, over)
                finally:
                    self._leave()

            def _leave(self) -> None:
                """Before the answer is sent: who has read it may ask again at once."""
                with fake._lock:
                    fake._under_way -= self.under_way
                    self.under_way = False

            def _serve(self, number: int, body: dict[str, Any], over: bool) -> None:
                said = (self.headers.get("X-Goog-Api-Key"), self.headers.get("Authorization"))
                if fake.key is not None and fake.key not in said and f"Bearer {fake.key}" not in said:
                    return self._send(403, {"error": {"message": f"the key {said[0] or said[1]} is not valid"}})
                if over:
                    fake.refused += 1
                    return self._send(429, {"error": {"status": "RESOURCE_EXHAUSTED"}})
                fault = fake.fault(number, body)
                if isinstance(fault, bytes):  # an answer that breaks off
                    self._leave()
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(fault) + 100))
                    self.end_headers()
                    self.wfile.write(fault)
                    self.close_connection = True
                elif isinstance(fault, tuple):
                    self._send(fault[0], {"error": {"message": "fault"}}, *fault[1:])
                elif fault is not None:
                    self._send(200, fault)
                else:
                    answer = fake.answer(body)
                    with fake._lock:  # before it is sent: who has read it may look at once
                        fake.asked[_asked(body)] += 1
                    try:
                        self._send(*(answer if isinstance(answer, tuple) else (200, answer)))
                    except OSError:  # the client has gone
                        with fake._lock:
                            fake.asked -= Counter([_asked(body)])
                        raise

            def _send(self, status: int, answer: Any, headers: dict[str, str] | None = None) -> None:
                content = json.dumps(answer).encode()
                self._leave()
                self.send_response(status)
                for name, value in (headers or {}).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        return Handler


def _asked(body: dict[str, Any]) -> str:
    if "input" in body:
        return "\n".join(body["input"])
    return body["comment"]["text"] if "comment" in body else body["messages"][-1]["content"]


def perspective(body: dict[str, Any]) -> Any:
    """The answer of `comments:analyze`, or its refusal of what it does not take."""
    if set(body) != {"comment", "languages", "requestedAttributes", "doNotStore"} or not body["comment"]["text"]:
        return 400, {"error": {"code": 400, "message": "comment is empty", "status": "INVALID_ARGUMENT"}}
    return {
        "attributeScores": {
            name: {"summaryScore": {"value": toxicity(body["comment"]["text"]), "type": "PROBABILITY"}}
            for name in body["requestedAttributes"]
        },
        "languages": body["languages"],
        "detectedLanguages": ["en"],
    }


def chat(quotes: Callable[[str], Any], finish: str = "stop") -> Callable[[dict[str, Any]], Any]:
    """An endpoint whose model answers the last message with what `quotes` makes of it."""

    def answer(body: dict[str, Any]) -> Any:
        content = quotes(body["messages"][-1]["content"])
        content = content if isinstance(content, str) else json.dumps(content)
        return {
            "choices": [{"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": content}}]
        }

    return answer


def embeddings(vectors: Callable[[list[str]], list[list[float]]]) -> Callable[[dict[str, Any]], Any]:
    """An endpoint whose model makes vectors of texts; it gives the last text's first, as the schema allows."""

    def answer(body: dict[str, Any]) -> Any:
        if not body["input"] or not all(body["input"]):
            return 400, {"error": {"message": "input cannot be an empty string", "type": "invalid_request_error"}}
        rows = [
            {"object": "embedding", "index": index, "embedding": vector}
            for index, vector in enumerate(vectors(body["input"]))
        ]
        usage = {"prompt_tokens": 1, "total_tokens": 1}
        return {"object": "list", "data": rows[::-1], "model": body["model"], "usage": usage}

    return answer
