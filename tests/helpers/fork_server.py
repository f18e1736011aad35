"""`python fork_server.py SOCKET ROOT [TESTS…]`: imports what tests and scripts do, and forks a Python for whoever asks.

Who asks connects to the socket and sends the three standard streams as descriptors, then one JSON object on a line:
`{"argv", "cwd", "environment"}`, where argv is what stands behind `python` on a command line. The answers are lines
too: the process id, and when the process has ended its exit status and the seconds of processor time it used. A process
whose asker has gone is killed with its group, and all of them are when the server is ended or its standard input is.

A forked process runs as `python ARGV` would: `sys.path`, `__main__`, exit status, exception hook and exit handlers.
Nothing but modules and what libraries cache is there before: no thread of ours, no CUDA context, no random number
drawn. It ends without taking the interpreter apart, which would touch, and so copy, all that the imports made.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import importlib.util
import json
import os
import pkgutil
import random
import runpy
import selectors
import signal
import socket
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

if __name__ == "__main__":
    sys.path.insert(1, sys.argv[2])  # the checkout that is tested, before anything of it is imported

import hydra_once
from garbage import collect_rarely
from hydra import initialize_config_dir
from omegaconf import OmegaConf
from transformers.conversion_mapping import get_checkpoint_conversion_mapping

from finegrained_rlhf.core.errors import ConfigError

_LIBRARIES = (
    "_pytest.terminal",
    "accelerate.commands.launch",
    "bm25s",
    "datasets",
    "execnet.gateway_base",
    "hydra",
    "hydra._internal.hydra",
    "hydra._internal.utils",
    "hypothesis",
    "nltk",
    "peft",
    "playwright.sync_api",
    "pydantic",
    "rouge_score.rouge_scorer",
    "sacrebleu",
    "scipy.stats",
    "torch._dynamo",
    "torch.distributed.run",
    "transformers.models.bert.modeling_bert",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
    "transformers.models.longformer.modeling_longformer",
    "transformers.models.t5.modeling_t5",
    "transformers.utils.logging",
)

_OFTEN = (
    ("train_ppo", "experiment=smoke"),
    ("doctor", "experiment=smoke"),
    ("train_sft", "experiment=factworld/sft"),
    ("evaluate",),
    ("generate",),
)
"""What many tests start: a script with its choices of groups."""


_OF_ENGINES = tuple(f"finegrained_rlhf.bridges.{engine}" for engine in ("skyrl", "trl", "verl"))
"""Modules that need an engine which has an environment of its own, and say so."""


def import_everything() -> None:
    """The libraries, and every module of the project; without those of packages that an engine's environment lacks."""
    for name in _LIBRARIES:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    for package in filter(importlib.util.find_spec, ("finegrained_rlhf", "reward_models", "finegrained_lab")):
        paths = importlib.import_module(package).__path__
        for module in pkgutil.walk_packages(paths, f"{package}."):
            if not module.name.endswith(".__main__"):
                with contextlib.suppress(ModuleNotFoundError, *[ConfigError] if module.name in _OF_ENGINES else []):
                    importlib.import_module(module.name)


def fill_caches(conf: Path) -> None:
    """What scripts do first and is kept: YAML parsed, expressions compiled, registries and spaCy's rules built."""
    with hydra_once.merged_once(), initialize_config_dir(str(conf), version_base=None):
        for path in conf.rglob("*.yaml"):
            OmegaConf.load(path)
        for script, *groups in _OFTEN:
            hydra_once.compose(script, groups)
    from finegrained_rlhf.text.segmentation import RULES, shared_segmenter

    shared_segmenter(RULES)
    get_checkpoint_conversion_mapping("t5")


def import_tests(arguments: list[str]) -> None:
    """The test modules that arguments of pytest choose: rewriting their assertions is dear, and is done once so.

    What cannot be imported, pytest's workers report.
    """
    import pytest
    import torch

    drawn = torch.get_rng_state(), random.getstate()
    pytest.main(["--collect-only", "-n0", "-p", "no:terminal", "-p", "no:cacheprovider", *arguments])
    torch.set_rng_state(drawn[0])
    random.setstate(drawn[1])


class Server:
    """Answers requests until it is ended.

    Args:
        path: of the socket to listen on.
    """

    def __init__(self, path: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{path}.new")
        self._listener.listen(64)
        os.rename(f"{path}.new", path)  # whoever finds it can connect
        self._running: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()

    def serve(self) -> dict[str, Any]:
        """Answer; returns in a forked process, with the request that it is to fulfil and its `streams`."""
        woken, wakes = os.pipe()
        for end in (woken, wakes):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakes)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(woken, selectors.EVENT_READ)
        self._selector.register(0, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    request = self._accept()
                    if request is not None:
                        signal.set_wakeup_fd(-1)
                        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                        os.close(woken)
                        os.close(wakes)
                        return request
                elif key.fileobj == woken:
                    os.read(woken, 4096)
                    self._say_who_ended()
                elif key.fileobj == 0:  # nothing is ever written to it: who started the server has gone
                    self.end()
                elif isinstance(key.fileobj, socket.socket):  # nobody writes a second time: the asker has gone
                    self._forget(key.fileobj)

    def _accept(self) -> dict[str, Any] | None:
        asker, _ = self._listener.accept()
        _, streams, _, _ = socket.recv_fds(asker, 1, 3)
        with asker.makefile(encoding="utf-8") as lines:
            request = json.loads(lines.readline())
        pid = os.fork()
        if pid == 0:
            for connection in (self._listener, asker, *self._running.values()):
                connection.close()
            self._selector.close()
            return {**request, "streams": streams}
        for descriptor in streams:
            os.close(descriptor)
        self._running[pid] = asker
        self._selector.register(asker, selectors.EVENT_READ)
        self._say(asker, pid)
        return None

    def _say(self, asker: socket.socket, answer: Any) -> None:
        with contextlib.suppress(OSError):  # it has gone: the selector says so next
            asker.sendall(json.dumps(answer).encode() + b"\n")

    def _say_who_ended(self) -> None:
        while self._running:
            pid, status, used = os.wait4(-1, os.WNOHANG)
            if pid == 0:
                return
            asker = self._running.pop(pid)
            self._say(asker, {"status": os.waitstatus_to_exitcode(status), "seconds": used.ru_utime + used.ru_stime})
            self._close(asker)

    def _forget(self, asker: socket.socket) -> None:
        for pid, connection in self._running.items():
            if connection is asker:
                kill_group(pid)
        self._selector.unregister(asker)  # its process is waited for when it has ended

    def _close(self, asker: socket.socket) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(asker)
        asker.close()

    def end(self) -> None:
        """Kill all that was forked, then leave."""
        for pid in self._running:
            kill_group(pid)
        os._exit(0)


def kill_group(leader: int) -> None:
    """`kill -9` a process and those that it started, where they still run."""
    for kill in (os.kill, os.killpg):  # where it was forked just now it leads no group yet
        with contextlib.suppress(ProcessLookupError):
            kill(leader, signal.SIGKILL)


def become(request: dict[str, Any]) -> None:
    """Make this forked process what a shell would have started."""
    os.setsid()
    for ends in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ends, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, descriptor in enumerate(request["streams"]):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.executable = os.environ.get("PYTHONEXECUTABLE", sys.executable)


def run(argv: list[str]) -> None:
    """What `python ARGV` runs: a file, `-m MODULE` or `-c PROGRAM`; `-u` and `-B` before it are skipped."""
    while argv[0] in ("-u", "-B"):
        argv = argv[1:]
    if argv[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *argv[2:]], ""
        module = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(argv[1], "<string>", "exec"), module.__dict__)
    elif argv[0] == "-m":
        sys.argv, sys.path[0] = argv[1:], os.getcwd()
        with hydra_once.merged_once():
            runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = argv, os.path.dirname(argv[0])
        with hydra_once.merged_once():
            runpy.run_path(argv[0], run_name="__main__")


def exit_status(argv: list[str]) -> int:
    """Run to the end and say what Python would exit with."""
    try:
        run(argv)
        return 0
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        return 130 if isinstance(error, KeyboardInterrupt) else 1


def leave(status: int) -> None:
    """What the interpreter does at its end: join threads, call exit handlers, write what is buffered."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed, or nobody reads it
            stream.flush()
    os._exit(status)


if __name__ == "__main__":
    server = Server(sys.argv[1])
    signal.signal(signal.SIGTERM, lambda *_: server.end())
    import_everything()
    fill_caches(Path(sys.argv[2]) / "conf")
    if sys.argv[3:]:
        import_tests(sys.argv[3:])
    collect_rarely()
    asked = server.serve()
    become(asked)
    leave(exit_status(asked["argv"]))
