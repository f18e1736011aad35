"""The web application over a directory of toy runs, without a socket and behind one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.testclient import TestClient

from finegrained_rlhf.web.application import Settings, create_app
from finegrained_rlhf.web.serve import listening


def client_of(directory: Path, **settings: Any) -> TestClient:
    """A client that asks as a browser does and gets errors as answers."""
    return TestClient(
        create_app(Settings(directory.resolve(), **settings)),
        base_url="http://localhost:8700",
        headers={"accept": "text/html"},
        raise_server_exceptions=False,
    )


@contextmanager
def served(directory: Path, **settings: Any) -> Iterator[str]:
    """The address of the application on a free port."""
    with served_app(directory, **settings) as (address, _):
        yield address


@contextmanager
def served_app(directory: Path, **settings: Any) -> Iterator[tuple[str, FastAPI]]:
    """The same, with the application."""
    import uvicorn

    listener, app = listening("127.0.0.1", 0), create_app(Settings(directory.resolve(), **settings))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://localhost:{listener.getsockname()[1]}", app
    server.should_exit = True
    thread.join()
    listener.close()
