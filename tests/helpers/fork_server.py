"""`python fork_server.py ROOT`: imports what scripts import, then forks a process for every script it is asked to run.

Reads one JSON object a line from standard input and answers on standard output. `{"argv", "cwd", "environment",
"outputs"}` starts a script and answers with its process id; `{"poll": pid}` answers null while it runs, then its exit
status and the seconds of processor time it used. It ends, and its scripts with it, when standard input ends.

A forked process runs the script as `python SCRIPT` would: its directory first on the path, `__main__`, exit status,
exception hook and exit handlers. Nothing but modules is there before: no thread of ours, no CUDA context, no random
number drawn. It ends without taking the interpreter apart, which would touch, and so copy, all that the imports made.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import sys
import threading
from typing import Any

_LIBRARIES = (
    "accelerate",
    "bm25s",
    "hydra",
    "hydra._internal.hydra",
    "hydra._internal.utils",
    "peft",
    "rouge_score.rouge_scorer",
    "sacrebleu",
    "torch._dynamo",
    "transformers.models.bert.modeling_bert",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.longformer.modeling_longformer",
    "transformers.models.t5.modeling_t5",
    "transformers.utils.logging",
)


def import_everything() -> None:
    """The libraries, and every module of the project."""
    for name in _LIBRARIES:
        importlib.import_module(name)
    for package in ("finegrained_rlhf", "reward_models"):
        paths = importlib.import_module(package).__path__
        for module in pkgutil.walk_packages(paths, f"{package}."):
            importlib.import_module(module.name)


def serve() -> dict[str, Any]:
    """Answer requests; returns in a forked process, with what it is to run."""
    for line in iter(sys.stdin.readline, ""):
        request = json.loads(line)
        if "poll" in request:
            print(json.dumps(poll(request["poll"])), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            return dict(request)
        _children.add(pid)
        print(pid, flush=True)
    for pid in _children:
        os.killpg(pid, signal.SIGKILL)
    os._exit(0)


_children: set[int] = set()


def poll(pid: int) -> dict[str, float] | None:
    """Exit status and processor time of a script that has ended."""
    ended, status, used = os.wait4(pid, os.WNOHANG)
    if ended == 0:
        return None
    _children.discard(pid)
    return {"status": os.waitstatus_to_exitcode(status), "seconds": used.ru_utime + used.ru_stime}


def become(request: dict[str, Any]) -> None:
    """Make this forked process what a shell would have started."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND
        descriptor = os.open(os.path.join(request["outputs"], name), flags, 0o644)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = request["argv"]
    sys.path[0] = os.path.dirname(sys.argv[0])


def exit_status(script: str) -> int:
    """Run a script to its end and say what Python would exit with."""
    try:
        runpy.run_path(script, run_name="__main__")
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
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    sys.path.insert(1, sys.argv[1])
    import_everything()
    gc.collect()
    gc.freeze()
    asked = serve()
    become(asked)
    leave(exit_status(asked["argv"][0]))
