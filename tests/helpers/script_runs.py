"""Scripts as a user runs them, without waiting for imports: processes forked from one that has imported everything."""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.files import read_jsonl

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {
    **os.environ,
    "ACCELERATE_USE_CPU": "true",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Of every script that a test runs."""
LAUNCH = ("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--main_process_port", "0")
"""Arguments of Python that start a script in two processes."""

Done = subprocess.CompletedProcess[str]
_spent = 0.0
_outputs = tempfile.TemporaryDirectory(prefix="scripts_")


def seconds_of_scripts() -> float:
    """Processor time of the forked scripts that have ended, in seconds."""
    return _spent


class _Server:
    """A process that has imported what scripts import, and forks one for each that is asked for."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("fork_server.py")), str(ROOT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=ENVIRONMENT,
            cwd=ROOT,
            text=True,
            start_new_session=True,
        )
        atexit.register(self._process.kill)

    def ask(self, **request: Any) -> Any:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the fork server ended with exit status {self._process.wait()}"
        return json.loads(answer)


@cache
def _server() -> _Server:
    return _Server()


@dataclass(frozen=True)
class Running:
    """A script that was started; its output goes to files.

    Attributes:
        pid: the process, leader of its group.
        outputs: directory of `stdout` and `stderr`.
    """

    pid: int
    outputs: Path

    def poll(self) -> int | None:
        """Its exit status, negative for a signal, or None while it runs; once it was told, it is forgotten."""
        global _spent
        answer = _server().ask(poll=self.pid)
        if answer is None:
            return None
        _spent += answer["seconds"]
        return int(answer["status"])

    def wait(self, timeout: float = 400.0) -> Done:
        """What it ended with.

        Raises:
            TimeoutError: it did not end in time; its group is killed.
        """
        deadline = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                self.send_signal(signal.SIGKILL)
                raise TimeoutError(f"{timeout:.0f} s are over: {self.printed('stdout')}\n{self.printed('stderr')}")
            time.sleep(0.01)
        return Done([], status, self.printed("stdout"), self.printed("stderr"))

    def send_signal(self, number: int) -> None:
        """Send a signal to it and to the processes it started."""
        os.killpg(self.pid, number)

    def printed(self, name: str) -> str:
        """What it has written so far to `stdout` or `stderr`."""
        return (self.outputs / name).read_text(encoding="utf-8", errors="replace")


def start_script(
    name: str,
    *arguments: str,
    cwd: Path = ROOT,
    environment: Mapping[str, str] | None = None,
    stdin: str = "",
) -> Running:
    """Start `scripts/NAME.py` with arguments in a process of its own.

    Args:
        name: of the script, or the path of another program, which ends in `.py`.
        arguments: its command line.
        cwd: its working directory.
        environment: variables beside `ENVIRONMENT`.
        stdin: what it reads from standard input.
    """
    outputs = Path(tempfile.mkdtemp(dir=_outputs.name))
    (outputs / "stdin").write_text(stdin, encoding="utf-8")
    pid = _server().ask(
        argv=[name if name.endswith(".py") else str(ROOT / "scripts" / f"{name}.py"), *arguments],
        cwd=str(cwd),
        environment={**ENVIRONMENT, **(environment or {})},
        outputs=str(outputs),
    )
    return Running(pid, outputs)


def run_script(name: str, *arguments: str, timeout: float = 400.0, **options: Any) -> Done:
    """Run `scripts/NAME.py` to its end; `options` are those of `start_script`."""
    return start_script(name, *arguments, **options).wait(timeout)


def run_in_two_processes(name: str, *arguments: str, timeout: float = 400.0) -> Done:
    """Run a script as `accelerate launch` would in two processes: the variables that torchrun sets, nothing else.

    When one fails the other is ended. Their outputs follow each other, those of the main process first.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        meeting["MASTER_PORT"] = str(free.getsockname()[1])
    ranks = [
        start_script(name, *arguments, environment={**meeting, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(2)
    ]
    deadline, ended = time.monotonic() + timeout, dict[int, int]()
    while len(ended) < len(ranks):
        for rank, running in enumerate(ranks):
            if rank not in ended and (status := running.poll()) is not None:
                ended[rank] = status
        if any(ended.values()) or time.monotonic() > deadline:
            for rank in set(range(len(ranks))) - set(ended):
                ranks[rank].send_signal(signal.SIGKILL)
        time.sleep(0.01)
    status = next((status for status in ended.values() if status), 0)
    stdout, stderr = ("".join(running.printed(name) for running in ranks) for name in ("stdout", "stderr"))
    return Done([], status, stdout, stderr)


def run_process(*arguments: str, cwd: Path = ROOT, timeout: float = 400.0, **environment: str) -> Done:
    """Run Python itself with arguments: where the start of a process is what a test is about."""
    command = [sys.executable, *arguments]
    variables = {**ENVIRONMENT, **environment}
    return subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, timeout=timeout)


def rows(path: Path) -> list[dict[str, Any]]:
    """JSON lines without what differs from run to run: times."""
    return [{key: value for key, value in row.items() if not key.startswith("time/")} for row in read_jsonl(path)]
