"""Servers of other programs, started for a test and ended with it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest


def program_named(variable: str, name: str) -> str:
    """The program that a variable of the environment names, or the one on the path; the test is skipped without one."""
    program = os.environ.get(variable) or shutil.which(name)
    if program is None:
        pytest.skip(f"no {name} on the path, and {variable} is not set")
    return program


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def serving(
    command: Sequence[str],
    directory: Path,
    ask: Callable[[], object],
    seconds: float,
    environment: Mapping[str, str] | None = None,
    ended_by: signal.Signals = signal.SIGTERM,
) -> Iterator[None]:
    """A server that answers.

    Args:
        command: starts it, in `directory`, where its `log` goes.
        directory: its working directory.
        ask: raises OSError as long as it does not answer.
        seconds: until it must.
        environment: of the process; None is that of the tests.
        ended_by: what ends it, even where others are still connected.
    """
    with (directory / "log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=directory)
    try:
        deadline = time.monotonic() + seconds
        while True:
            assert process.poll() is None, (directory / "log").read_text()[-2000:]
            try:
                ask()
                break
            except OSError:
                assert time.monotonic() < deadline, "the server does not answer"
                time.sleep(0.5)
        yield
    finally:
        process.send_signal(ended_by)
        process.wait(30)
