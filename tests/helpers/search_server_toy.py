"""A search server in a thread: it keeps documents, scores BM25 by its definition, and fails when it is told to.

It takes the requests that OpenSearch and Elasticsearch document, and refuses every other one.
"""

from __future__ import annotations

import base64
import json
import math
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Answer = tuple[int, Any, dict[str, str]]
Fault = Callable[[Answer], "Answer | bytes"]
_KIND = "application/x-ndjson"  # of requests whose body is lines
_SAYS = {
    "opensearch": "application/json; charset=UTF-8",
    "elasticsearch": "application/vnd.elasticsearch+json;compatible-with=9",
}
_SEARCH = {"query", "size", "_source", "docvalue_fields", "sort", "track_scores", "track_total_hits"}


class FakeServer:
    """Attributes:
    indexes: settings, mappings and documents by name.
    requests: (method, path) in the order in which they came.
    faults: the end of a path, and what makes another answer of the true one to the next request with it; one after
        the other, each once.
    password: of the user `reader`, where one is needed.
    product: `opensearch` or `elasticsearch`, which says so in every answer.
    """

    def __init__(self, product: str = "opensearch") -> None:
        self.product = product
        self.indexes: dict[str, dict[str, Any]] = {}
        self.requests: list[tuple[str, str]] = []
        self.faults: list[tuple[str, Fault]] = []
        self._lock = threading.Lock()
        self.password: str | None = None
        self._httpd = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._httpd.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._httpd.server_address[1]}"
        threading.Thread(target=self._httpd.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def use_tls(self, certificate: Path, key: Path) -> None:
        """Speak TLS from now on."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._httpd.socket = context.wrap_socket(self._httpd.socket, server_side=True)
        self.url = self.url.replace("http:", "https:")

    def close(self) -> None:
        self._httpd.shutdown()
        self._httpd.server_close()

    def paths(self, end: str) -> int:
        """Requests whose path ends so."""
        return sum(path.endswith(end) for _, path in self.requests)

    def _handler(fake: Any) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None: ...

            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                fake.requests.append((self.command, self.path))
                wanted = "Basic " + base64.b64encode(f"reader:{fake.password}".encode()).decode()
                if fake.password is not None and self.headers.get("Authorization") != wanted:
                    answer: Answer = (401, {"error": "who are you?"}, {})
                else:
                    answer = fake._answer(self.command, self.path, body, self.headers.get("Content-Type"))
                with fake._lock:
                    due = bool(fake.faults) and self.path.endswith(fake.faults[0][0])
                    fault = fake.faults.pop(0)[1] if due else None
                self._send(fault(answer) if fault is not None else answer)

            def _send(self, answer: Any) -> None:
                try:
                    if isinstance(answer, bytes):  # a broken connection, as far as it got
                        self.wfile.write(answer)
                        self.close_connection = True
                        return
                    status, content, headers = answer
                    data = content if isinstance(content, bytes) else json.dumps(content).encode()
                    self.send_response(status)
                    known = {"X-Elastic-Product": "Elasticsearch"} if fake.product == "elasticsearch" else {}
                    if not isinstance(content, bytes):
                        known |= {"Content-Type": _SAYS[fake.product]}
                    for name, value in {"Content-Length": str(len(data)), **known, **headers}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(data)
                except OSError:
                    pass  # the client did not wait

            do_GET = do_PUT = do_POST = _serve

        return Handler

    def _answer(self, method: str, path: str, body: bytes, kind: str | None) -> Answer:
        name, _, action = path.strip("/").partition("/")
        if method == "PUT" and not action:
            return self._create(name, json.loads(body))
        if name not in self.indexes:
            return 404, {"error": {"type": "index_not_found_exception", "reason": f"no such index [{name}]"}}, {}
        index = self.indexes[name]
        if (method, action) == ("GET", "_mapping"):
            return 200, {name: {"mappings": index["mappings"]}}, {}
        if (method, action) == ("POST", "_count"):
            return 200, {"count": len(index["seen"])}, {}
        if (method, action) == ("PUT", "_settings"):
            index["settings"]["index"].update(json.loads(body)["index"])
            return 200, {"acknowledged": True}, {}
        if (method, action) == ("POST", "_refresh"):
            index["seen"] = dict(index["documents"])
            return 200, {"_shards": {"failed": 0}}, {}
        assert method in ("POST", "PUT") and kind == _KIND and body.endswith(b"\n"), (method, path, kind)
        lines = [json.loads(line) for line in body.decode().splitlines()]
        if action == "_bulk":
            return self._bulk(index, lines)
        assert action == "_msearch", path
        return 200, {"responses": [self._search(index, *lines[i : i + 2]) for i in range(0, len(lines), 2)]}, {}

    def _create(self, name: str, body: dict[str, Any]) -> Answer:
        if name in self.indexes:
            return 400, {"error": {"type": "resource_already_exists_exception", "reason": name}}, {}
        assert set(body) == {"settings", "mappings"} and body["mappings"]["dynamic"] == "strict"
        self.indexes[name] = {**body, "documents": {}, "seen": {}}
        return 200, {"acknowledged": True}, {}

    def _bulk(self, index: dict[str, Any], lines: list[dict[str, Any]]) -> Answer:
        items = []
        for action, document in zip(lines[::2], lines[1::2], strict=True):
            key = action["index"]["_id"]
            assert set(document) == set(index["mappings"]["properties"]) and len(key.encode()) <= 512
            if "forbidden" in document["contents"]:
                error = {"type": "mapper_parsing_exception", "reason": "forbidden word"}
                items.append({"index": {"_id": key, "status": 400, "error": error}})
                continue
            index["documents"][key] = document
            items.append({"index": {"_id": key, "status": 201}})
        return 200, {"errors": False, "items": items}, {}

    def _search(self, index: dict[str, Any], header: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
        assert header == {"search_type": "dfs_query_then_fetch"} and set(body) == _SEARCH
        assert body["docvalue_fields"] == ["id"] and body["sort"] == [{"_score": "desc"}, {"id": "desc"}]
        wanted = body["query"]["bool"]
        allowed = wanted.get("filter", {"terms": {"id": None}})["terms"]["id"]
        assert allowed is None or len(allowed) <= 65_536
        query = wanted["must"]["match"]["contents"]["query"] if "must" in wanted else None
        scores = {
            document["id"]: 0.0 if query is None else self.bm25(index, query, document["contents"])
            for document in index["seen"].values()
            if allowed is None or document["id"] in allowed
        }
        best = sorted(((score, key) for key, score in scores.items() if query is None or score > 0), reverse=True)
        hits = [{"_id": key, "_score": score, "fields": {"id": [key]}} for score, key in best[: body["size"]]]
        shards = {"total": 1, "successful": 1, "failed": 0}
        return {"status": 200, "timed_out": False, "_shards": shards, "hits": {"hits": hits}}

    @staticmethod
    def bm25(index: dict[str, Any], query: str, text: str) -> float:
        """Lucene's BM25 over lower-cased words."""
        similarity = index["settings"]["index"]["similarity"]["passages"]
        corpus = [document["contents"].lower().split() for document in index["seen"].values()]
        average = sum(map(len, corpus)) / len(corpus)
        words, score = text.lower().split(), 0.0
        for word in query.lower().split():
            df, tf = sum(word in other for other in corpus), Counter(words)[word]
            idf = math.log(1 + (len(corpus) - df + 0.5) / (df + 0.5))
            norm = similarity["k1"] * (1 - similarity["b"] + similarity["b"] * len(words) / average)
            score += idf * tf / (tf + norm)
        return score


def busy(status: int = 429, **headers: str) -> Fault:
    """The server has too much to do."""
    return lambda answer: (status, {"error": "too much to do"}, headers)


def slow(seconds: float) -> Fault:
    """The answer is right and comes late."""

    def wait(answer: Answer) -> Answer:
        time.sleep(seconds)
        return answer

    return wait


def says(content: bytes) -> Fault:
    """Something else answers."""
    return lambda answer: (200, content, {})
