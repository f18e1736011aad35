"""One process writes to a directory at a time, and a killed one leaves it free."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.runtime.directory.lock import LOCK_FILE, is_locked, locked_directory

HOLD = """
import sys, time
from finegrained_rlhf.runtime.directory.lock import locked_directory
with locked_directory(sys.argv[1]):
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""


def holder(path: Path, seconds: float = 60) -> subprocess.Popen[str]:
    """Another process that holds the lock of a directory."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path), str(seconds)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_a_second_process_is_refused_before_it_writes_and_a_killed_one_leaves_the_directory_free(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run"
    other = holder(path)
    try:
        before = sorted((file.name, file.stat().st_mtime_ns) for file in path.iterdir())
        assert is_locked(path)
        with pytest.raises(ConfigError, match=rf"process {other.pid} on .* is writing to .*run; wait"):
            with locked_directory(path):
                raise AssertionError("two processes hold it")
        assert sorted((file.name, file.stat().st_mtime_ns) for file in path.iterdir()) == before
    finally:
        other.send_signal(signal.SIGKILL)
        other.wait()
    assert (path / LOCK_FILE).is_file() and not is_locked(path)  # nobody could remove it
    with locked_directory(path):
        assert is_locked(path)
        (path / "result").write_text("x")
    assert [file.name for file in path.iterdir()] == ["result"]


def test_of_processes_that_start_together_one_gets_the_directory(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir()
    race = "import os, sys, time\nfrom finegrained_rlhf.runtime.directory.lock import locked_directory\n"
    race += "time.sleep(float(sys.argv[2]) - time.time())\n"
    race += "with locked_directory(sys.argv[1]):\n    time.sleep(0.5)\n"
    start = str(time.time() + 1.5)
    started = [
        subprocess.Popen([sys.executable, "-c", race, str(path), start], stderr=subprocess.DEVNULL) for _ in range(5)
    ]
    assert sorted(process.wait() for process in started) == [0, 1, 1, 1, 1]
    assert list(path.iterdir()) == []


def test_a_process_may_take_its_lock_again_and_leaves_no_empty_directory(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    with locked_directory(path), locked_directory(tmp_path / "a" / ".." / "a" / "b"):
        assert is_locked(path)
    assert list(tmp_path.iterdir()) == []
    path.mkdir(parents=True)
    with locked_directory(path):
        pass
    assert path.is_dir()  # it was there before


def test_the_lock_follows_a_directory_that_is_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with locked_directory(path):
        os.replace(path, tmp_path / "aside")
        with locked_directory(path):  # a new directory of that name has a lock of its own
            (path / "new").write_text("x")
            with pytest.raises(subprocess.CalledProcessError):
                subprocess.run(
                    [sys.executable, "-c", HOLD, str(path), "0"], check=True, stderr=subprocess.DEVNULL, timeout=60
                )
    assert [file.name for file in path.iterdir()] == ["new"]


def test_a_forked_child_holds_nothing(tmp_path: Path) -> None:
    with locked_directory(tmp_path):
        child = os.fork()
        if child == 0:
            try:
                with locked_directory(tmp_path):
                    os._exit(1)
            except ConfigError:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0


def test_a_directory_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with (
        pytest.raises(ConfigError, match=r"output_dir: .*file/run cannot be made"),
        locked_directory(tmp_path / "file" / "run"),
    ):
        pass
