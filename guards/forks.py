"""Python processes that need not import libraries: forked from this one, which has imported them.

A forked process imports the project of the directories it is given, never the one that this process knows. It ends
without taking the interpreter apart, but runs its own exit handlers; those of this process are not its.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import runpy
import signal
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

LIBRARIES = (
    "accelerate",
    "datasets",
    "hydra",
    "numpy",
    "omegaconf",
    "peft",
    "pydantic",
    "torch",
    "torch.utils.data",
    "torch.distributed",
    "transformers",
    "transformers.models.bert.modeling_bert",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
    "transformers.models.longformer.modeling_longformer",
    "transformers.models.t5.modeling_t5",
)
"""What most commands import; one that is not installed is left out."""
OURS = frozenset(
    {"benchmarks", "conftest", "finegrained_lab", "finegrained_rlhf", "guards", "lab", "reward_models", "tests"}
)
"""Top-level packages that a forked process imports anew."""
TIMED_OUT = 124
"""Exit status of a process that was killed because its time was over."""


def import_libraries() -> None:
    """Import `LIBRARIES`, so that forked processes have them."""
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def start(command: Sequence[str], directory: Path, paths: Sequence[Path], variables: Mapping[str, str]) -> int:
    """Start what `python COMMAND` runs.

    Args:
        command: a file or `-m MODULE`, with its arguments.
        directory: working directory; `stdout.txt` and `stderr.txt` are written there.
        paths: directories from which the project is imported.
        variables: environment variables beside this process's.

    Returns:
        The process id, which leads a group of its own.
    """
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        _become(directory, paths, variables)
        status = _run(list(command))
    finally:
        _leave(status)
    raise AssertionError  # it has ended


def wait(pid: int, seconds: float) -> tuple[int, float]:
    """The exit status of a process, negative for a signal, and the processor time that it used, in seconds.

    Args:
        pid: of a process that `start` started.
        seconds: after so many its group is killed, and the status is `TIMED_OUT`.
    """
    deadline = time.monotonic() + seconds
    while True:
        ended, status, used = os.wait4(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime
        if time.monotonic() > deadline:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            _, _, used = os.wait4(pid, 0)
            return TIMED_OUT, used.ru_utime + used.ru_stime
        time.sleep(0.02)


def _become(directory: Path, paths: Sequence[Path], variables: Mapping[str, str]) -> None:
    gc.freeze()  # what is there now stays: pytest looks for garbage five times at its end
    os.setsid()
    atexit._clear()
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]
    libraries = [entry for entry in sys.path if not (Path(entry) / "finegrained_rlhf").is_dir()]
    sys.path[:] = [*map(str, paths), *libraries]
    os.chdir(directory)
    for number, name in ((1, "stdout.txt"), (2, "stderr.txt")):
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, number)
        os.close(descriptor)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
    os.environ.update(variables, PYTHONPATH=os.pathsep.join(map(str, paths)))
    for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
        del sys.modules[name]
    importlib.invalidate_caches()


def _run(command: list[str]) -> int:
    try:
        if command[0] == "-m":
            sys.argv = command[1:]
            runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = command
            runpy.run_path(command[0], run_name="__main__")
        return 0
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        return 1


def _leave(status: int) -> None:
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)
