"""Commands as child processes that take a resolved configuration, write to a log and end with their parent."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import write_text
from finegrained_rlhf.launch.configurations import typed
from finegrained_rlhf.runtime.directory.lock import locked_file as locked

_HEAD = """# Written by finegrained sweep; read by {command} --config-dir DIRECTORY --config-name {name}
defaults:
  - app
  - _self_
  - override hydra/job_logging: none
  - override hydra/hydra_logging: none

"""
_PATIENCE = 20.0
"""Seconds that an interrupted child gets to end by itself."""


def write_config(path: Path, script: str, config: Mapping[str, Any]) -> None:
    """Write a resolved configuration so that a command takes it by `--config-dir` and `--config-name`."""
    write_text(path, _HEAD.format(command=typed(script), name=path.stem) + as_yaml(config))


def as_yaml(config: Mapping[str, Any]) -> str:
    """Plain containers as Hydra reads them back: texts that look like numbers are quoted."""
    from omegaconf import OmegaConf  # the rest serves the benchmark on machines without it

    return OmegaConf.to_yaml(OmegaConf.create(dict(config)))


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM interrupts as Ctrl-C does, so that children are ended then too."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run_logged(
    command: Sequence[str],
    log: Path,
    environment: Mapping[str, str] | None = None,
    keep: Sequence[int] = (),
    timeout: float | None = None,
) -> int:
    """Run a command, its output appended to a log under the line that one would type. Returns the exit status.

    Args:
        command: program and arguments.
        log: file.
        environment: variables beside those of this process.
        keep: file descriptors that the child holds open as long as it lives (locks).
        timeout: seconds after which it is ended; None waits.

    Raises:
        subprocess.TimeoutExpired: it was ended.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    variables = [f"{name}={shlex.quote(value)}" for name, value in (environment or {}).items()]
    typed = " ".join([*variables, shlex.join(command)])
    with open(log, "a", encoding="utf-8") as stream:
        print(f"$ {typed}", file=stream, flush=True)
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            pass_fds=keep,
            start_new_session=True,  # a group of its own: launcher and processes of a run are ended together
        )
        try:
            return process.wait(timeout)
        except BaseException:
            _end_group(process)
            raise


def run_shown(command: Sequence[str]) -> int:
    """Run a command whose output is shown as it comes; it ends with this process. Returns the exit status."""
    with ended_by_signals(), subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True) as process:
        try:
            return process.wait()
        except BaseException:
            _end_group(process)
            raise


def _end_group(process: subprocess.Popen[bytes]) -> None:
    for number, seconds in ((signal.SIGINT, _PATIENCE), (signal.SIGKILL, None)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def last_output(log: Path) -> list[str]:
    """What the last command in a log printed, without empty lines; a progress bar counts as what it showed last."""
    if not log.is_file():
        return []
    text = log.read_text(encoding="utf-8", errors="replace")
    lines = [line.rpartition("\r")[2].rstrip() for line in text.split("\n")]
    starts = [number for number, line in enumerate(lines) if line.startswith("$ ")]
    return [line for line in lines[starts[-1] + 1 if starts else 0 :] if line]


def complaint(output: Sequence[str]) -> str:
    """The line of a failed command's output that says why: a command's own error, else the last one."""
    errors = [line for line in output if line.startswith("error: ")]
    return (errors or list(output) or ["no output"])[-1]


@contextmanager
def gpus_for(gpus: Sequence[int] | None, each: int, locks: Path) -> Iterator[tuple[dict[str, str], list[int]]]:
    """Take `each` GPUs that no other point on this machine has.

    Yields:
        Variables of the environment that name them, and the descriptors of the locks; both empty where `gpus` is None.
    """
    if gpus is None:
        yield {}, []
        return
    shares = [list(gpus[start : start + each]) for start in range(0, len(gpus) - each + 1, each)]
    with ExitStack() as stack:
        while True:
            for share in shares:
                name = "_".join(map(str, share))
                try:
                    descriptor = stack.enter_context(locked(locks / f"gpus_{name}.lock", wait=False))
                except ConfigError:
                    continue
                yield {"CUDA_VISIBLE_DEVICES": ",".join(map(str, share))}, [descriptor]
                return
            time.sleep(1.0)
