"""The application's frame: what it answers to, what it refuses, and how the command starts and ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

pytest.importorskip("fastapi")

from fastapi import Request
from starlette.testclient import TestClient

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.web.address import listening
from finegrained_rlhf.web.application import Settings, create_app
from finegrained_rlhf.web.guard import BODY_BYTES
from finegrained_rlhf.web.serve import Serve

ROOT = Path(__file__).parents[2]


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    return TestClient(create_app(Settings(tmp_path)), base_url="http://localhost:8700", raise_server_exceptions=False)


def test_it_is_healthy_and_begins_with_the_first_section(client: TestClient) -> None:
    assert client.get("/healthz").json()["status"] == "ok"
    assert client.get("/").url.path == "/runs"
    assert 'aria-current="page">Runs</a>' in client.get("/").text


def test_a_page_has_no_script_or_style_of_its_own_and_loads_nothing_from_elsewhere(client: TestClient) -> None:
    answer = client.get("/runs")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'self'" in policy and "unsafe" not in policy
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?! src=)", answer.text)
    addresses = re.findall(r'(?:src|href)="([^"]*)"', answer.text)
    for address in {address for address in addresses if not address.startswith("#")}:
        assert address.startswith("/") and not address.startswith("//")
        assert client.get(address).status_code == 200, address


@pytest.mark.parametrize(
    "path", ["/nothing", "/static/../serve.py", "/static/%2e%2e/serve.py", "/static/report/../page.py"]
)
def test_errors_are_pages_for_browsers_and_objects_for_programs(client: TestClient, path: str) -> None:
    page = client.get(path, headers={"accept": "text/html"})
    assert page.status_code == 404 and "<h1>Not Found</h1>" in page.text and "import" not in page.text
    assert client.get(path).json() == {"error": "There is no such page."}


def test_a_bug_is_a_page_with_the_headers_and_without_its_trace(client: TestClient) -> None:
    def fail() -> None:
        raise RuntimeError("a secret of the trace")

    client.app.add_api_route("/fails", fail)
    answer = client.get("/fails", headers={"accept": "text/html"})
    assert answer.status_code == 500 and "secret" not in answer.text and "Internal Server Error" in answer.text
    assert "content-security-policy" in answer.headers


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        ({"method": "GET", "headers": {"host": "evil.example"}}, 400),
        ({"method": "GET", "headers": {"host": "127.0.0.1:8700"}}, 200),
        ({"method": "GET", "headers": {"host": "[::1]:8700"}}, 200),
        ({"method": "POST", "headers": {"origin": "http://evil.example"}}, 403),
        ({"method": "POST", "headers": {"origin": "null"}}, 403),
        ({"method": "POST", "headers": {"origin": "http://localhost:9999"}}, 403),
        ({"method": "POST", "headers": {"origin": "http://localhost:8700"}}, 405),
        ({"method": "POST", "content": b"x" * (BODY_BYTES + 1)}, 413),
        ({"method": "POST", "headers": {"content-length": "-1"}}, 413),
    ],
)
def test_what_is_refused_before_a_route_sees_it(client: TestClient, request_: dict, status: int) -> None:
    answer = client.request(url="/runs", **request_)
    assert answer.status_code == status
    assert "content-security-policy" in answer.headers


def test_a_body_that_does_not_say_its_length_ends_at_the_limit(client: TestClient) -> None:
    async def read(request: Request) -> int:
        return len(await request.body())

    client.app.add_api_route("/read", read, methods=["POST"])
    sizes = {1: 200, BODY_BYTES // 1000 + 2: 413}
    for blocks, status in sizes.items():
        assert client.post("/read", content=(b"x" * 1000 for _ in range(blocks))).status_code == status


def test_only_this_machine_reaches_it_unless_a_proxy_is_promised() -> None:
    for host in ("0.0.0.0", "::", "192.168.1.2", "my-machine"):
        with pytest.raises(ConfigError, match="behind_proxy=true"):
            Serve(host=host)
    with pytest.raises(ConfigError, match="names"):
        Serve(host="0.0.0.0", behind_proxy=True)
    Serve(host="0.0.0.0", behind_proxy=True, names=["marks.example"])
    for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost"):
        Serve(host=host)


def test_a_name_of_the_proxy_is_answered(tmp_path: Path) -> None:
    app = create_app(Settings(tmp_path, names=("marks.example",)))
    assert TestClient(app, base_url="https://marks.example").get("/healthz").status_code == 200
    assert TestClient(app, base_url="https://other.example").get("/healthz").status_code == 400


def test_a_port_that_is_taken_is_one_line() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(ConfigError, match=r"port: \d+ is taken on 127.0.0.1; give another one"):
            listening("127.0.0.1", other.getsockname()[1])


def test_a_missing_package_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(ConfigError, match=r"serve needs uvicorn: pip install '\.\[web\]'"):
        Serve(tmp_path, open=False).run()


def test_it_serves_on_a_free_port_and_ends_at_ctrl_c(tmp_path: Path) -> None:
    code = f"from finegrained_rlhf.web import Serve; Serve({str(tmp_path)!r}, port=0, open=False).run()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env={**os.environ, "PYTHONPATH": str(ROOT)}) as process:  # fmt: skip
        assert process.stdout is not None
        url = re.search(r"http://\S+", process.stdout.readline())
        assert url is not None
        assert httpx.get(f"{url[0]}healthz").json()["status"] == "ok"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, "stopped\n", "")
