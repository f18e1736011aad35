"""`pytest --cpu-times=FILE`: what every test costs in seconds of processor time, honest on a busy machine.

Counted: this process, the children it waited for, and the scripts that `script_runs` forks.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Generator
from pathlib import Path

import pytest
import script_runs


def seconds() -> float:
    """Processor time used so far on behalf of this process's tests."""
    total = script_runs.seconds_of_scripts()
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        used = resource.getrusage(who)
        total += used.ru_utime + used.ru_stime
    return total


class CpuTimes:
    """Appends a line for each phase of a test to a file: seconds, phase, test. A fixture counts where it is built.

    Attributes:
        path: the file; several xdist workers append to the same.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def _timed(self, item: pytest.Item, phase: str) -> Generator[None, object, object]:
        start = seconds()
        try:
            return (yield)
        finally:
            line = f"{seconds() - start:9.3f} {phase:8} {item.nodeid}\n"
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.write(descriptor, line.encode())
            os.close(descriptor)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        """Fixtures."""
        return (yield from self._timed(item, "setup"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """The test itself."""
        return (yield from self._timed(item, "call"))
