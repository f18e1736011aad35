"""Commands as a user runs them, without waiting for imports: processes forked from one that has imported everything."""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from finegrained_rlhf.core.files import read_jsonl

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {
    **os.environ,
    "ACCELERATE_USE_CPU": "true",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Of every command that a test runs."""
LAUNCH = ("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--main_process_port", "0")
"""Arguments of Python that start a script, or `-m finegrained_rlhf NAME`, in two processes."""

PRELOADED_PYTHON = Path(__file__).with_name("preloaded_python")
"""Stands for `sys.executable` where the imports of a process are not what a test is about."""
_SOCKET = "FORK_SERVER"

Done = subprocess.CompletedProcess[str]
_spent = 0.0


def seconds_of_scripts() -> float:
    """Processor time of the forked scripts that have ended, in seconds."""
    return _spent


@cache
def _outputs() -> tempfile.TemporaryDirectory[str]:
    """For what this process starts, made when it starts something: a process that was forked before has its own."""
    return tempfile.TemporaryDirectory(prefix="scripts_")


@cache
def fork_server(*tests: str) -> str:
    """The socket of the fork server: the one that the environment names, or a new one that ends with this process.

    Args:
        tests: arguments of pytest; a new one imports the test modules that they choose, too.

    Without the packages that it imports, as on a bare machine, tests that need it are skipped.
    """
    if _SOCKET not in os.environ:
        for module in ("bm25s", "datasets", "hydra", "peft", "rouge_score", "sacrebleu", "scipy", "spacy"):
            pytest.importorskip(module)
        os.environ[_SOCKET] = str(Path(_outputs().name) / "fork_server")
        (Path(_outputs().name) / "compositions").mkdir()  # which processes share: `hydra_once.py`
        program = Path(__file__).with_name("fork_server.py")
        command = [sys.executable, str(program), os.environ[_SOCKET], str(ROOT), *tests]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, env=ENVIRONMENT, cwd=ROOT, start_new_session=True)
        atexit.register(process.wait)
        atexit.register(process.terminate)
        while not Path(os.environ[_SOCKET]).exists():
            assert process.poll() is None, "the fork server ended at once"
            time.sleep(0.01)
    return os.environ[_SOCKET]


@dataclass(frozen=True)
class Running:
    """A command that was started; its output goes to files. It is killed when nobody holds this any more.

    Attributes:
        pid: the process, leader of its group.
        outputs: directory of `stdout` and `stderr`.
        server: says when it has ended.
    """

    pid: int
    outputs: Path
    server: socket.socket

    def poll(self, timeout: float = 0.0) -> int | None:
        """Its exit status, negative for a signal, or None where it still runs after so many seconds; told once."""
        global _spent
        if not select.select([self.server], [], [], timeout)[0]:
            return None
        answer = _answer(self.server)
        self.server.close()
        _spent += answer["seconds"]
        return int(answer["status"])

    def wait(self, timeout: float = 400.0) -> Done:
        """What it ended with.

        Raises:
            TimeoutError: it did not end in time; its group is killed.
        """
        status = self.poll(timeout)
        if status is None:
            self.send_signal(signal.SIGKILL)
            raise TimeoutError(f"{timeout:.0f} s are over: {self.printed('stdout')}\n{self.printed('stderr')}")
        return Done([], status, self.printed("stdout"), self.printed("stderr"))

    def send_signal(self, number: int) -> None:
        """Send a signal to it and to the processes it started."""
        os.killpg(self.pid, number)

    def printed(self, name: str) -> str:
        """What it has written so far to `stdout` or `stderr`."""
        return (self.outputs / name).read_text(encoding="utf-8", errors="replace")


def _answer(server: socket.socket) -> Any:
    """The next line of the server, read byte by byte: what follows it must stay in the socket."""
    line = bytearray()
    while not line.endswith(b"\n"):
        got = server.recv(1)
        assert got, "the fork server ended"
        line += got
    return json.loads(line)


def of_command(name: str, *arguments: str) -> list[str]:
    """The arguments with which Python runs a command."""
    return ["-m", "finegrained_rlhf", name, *arguments]


def start_script(
    name: str,
    *arguments: str,
    cwd: Path = ROOT,
    environment: Mapping[str, str] | None = None,
    stdin: str = "",
) -> Running:
    """Start `finegrained NAME` with arguments in a process of its own.

    Args:
        name: of the command, or the path of another program, which ends in `.py`.
        arguments: its command line.
        cwd: its working directory.
        environment: variables beside `ENVIRONMENT`.
        stdin: what it reads from standard input.
    """
    outputs = Path(tempfile.mkdtemp(dir=_outputs().name))
    (outputs / "stdin").write_text(stdin, encoding="utf-8")
    request = {
        "argv": [name, *arguments] if name.endswith(".py") else of_command(name, *arguments),
        "cwd": str(cwd),
        "environment": {**ENVIRONMENT, _SOCKET: fork_server(), **(environment or {})},
    }
    server = socket.socket(socket.AF_UNIX)
    server.connect(fork_server())
    with ExitStack() as files:
        modes = {"stdin": "r", "stdout": "a", "stderr": "a"}
        streams = [files.enter_context(open(outputs / stream, mode)).fileno() for stream, mode in modes.items()]
        socket.send_fds(server, [b"\n"], streams)
    server.sendall(json.dumps(request).encode() + b"\n")
    return Running(_answer(server), outputs, server)


def run_script(name: str, *arguments: str, timeout: float = 400.0, **options: Any) -> Done:
    """Run `finegrained NAME` to its end; `options` are those of `start_script`."""
    return start_script(name, *arguments, **options).wait(timeout)


def run_again_after_a_kill(name: str, *arguments: str, when: Callable[[], bool], timeout: float = 400.0) -> Done:
    """Run a command, kill it when something holds, and run the same command to its end, which must resume.

    Args:
        name: of the command.
        arguments: its command line.
        when: holds some time before the script would have ended.
        timeout: seconds until it must hold, and of the second run.
    """
    running, deadline = start_script(name, *arguments), time.monotonic() + timeout
    while not when():
        assert running.poll(0.002) is None, f"it ended before: {running.printed('stderr')}"
        assert time.monotonic() < deadline, running.printed("stderr")
    running.send_signal(signal.SIGKILL)
    assert running.wait().returncode == -signal.SIGKILL
    again = run_script(name, *arguments, timeout=timeout)
    assert again.returncode == 0 and "resuming from" in again.stderr, again.stderr
    return again


def lines_in(path: Path) -> int:
    """Whole lines of a file that is being written; 0 where there is none."""
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def run_in_two_processes(name: str, *arguments: str, timeout: float = 400.0) -> Done:
    """See `run_in_processes`."""
    return run_in_processes(2, name, *arguments, timeout=timeout)


def run_in_processes(
    count: int, name: str, *arguments: str, timeout: float = 400.0, killed_when: Callable[[], bool] = lambda: False
) -> Done:
    """Run a command as `accelerate launch` would in several processes: the variables that torchrun sets, nothing else.

    When one fails the others are ended, and all of them when `killed_when` holds. Their outputs follow each other,
    those of the main process first.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1"}
        meeting["MASTER_PORT"] = str(free.getsockname()[1])
    ranks = [
        start_script(name, *arguments, environment={**meeting, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(count)
    ]
    deadline, ended = time.monotonic() + timeout, dict[int, int]()
    while len(ended) < len(ranks):
        for rank, running in enumerate(ranks):
            if rank not in ended and (status := running.poll()) is not None:
                ended[rank] = status
        if any(ended.values()) or time.monotonic() > deadline or killed_when():
            for rank in set(range(len(ranks))) - set(ended):
                with suppress(ProcessLookupError):  # it ended a moment ago
                    ranks[rank].send_signal(signal.SIGKILL)
        time.sleep(0.01)
    status = next((status for status in ended.values() if status), 0)
    stdout, stderr = ("".join(running.printed(name) for running in ranks) for name in ("stdout", "stderr"))
    return Done([], status, stdout, stderr)


def run_process(
    *arguments: str, cwd: Path = ROOT, timeout: float = 400.0, preloaded: bool = False, **environment: str
) -> Done:
    """Run Python with arguments: itself, where the start of a process is what a test is about, or preloaded."""
    python = str(PRELOADED_PYTHON) if preloaded else sys.executable
    own = {"PYTHONEXECUTABLE": python, _SOCKET: fork_server()} if preloaded else {}
    variables = {**ENVIRONMENT, **own, **environment}
    return subprocess.run([python, *arguments], cwd=cwd, env=variables, capture_output=True, text=True, timeout=timeout)


def rows(path: Path) -> list[dict[str, Any]]:
    """JSON lines without what differs from run to run: times."""
    return [{key: value for key, value in row.items() if not key.startswith("time/")} for row in read_jsonl(path)]
