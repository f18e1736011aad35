"""Directories that are written while training goes on: a checkpoint, an exported model.

What is to be written was taken before; every process writes and hashes its own part in a thread. A directory comes into
place when all have done so, in the order in which they were begun, and everything that processes say to each other
about it is said between steps, in the thread that trains.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Thread
from types import TracebackType

from finegrained_rlhf.core.errors import CheckpointError
from finegrained_rlhf.core.files import Write, flush, put_in_place, temporary_directory
from finegrained_rlhf.runtime.loop.checkpoints import Checksums, checksums, reporting_full_disk
from finegrained_rlhf.runtime.processes import Processes

AT_ONCE = 2
"""Directories that may be on their way: an export and the checkpoint of the same step."""


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Writing:
    """A directory to write.

    Attributes:
        path: where it will be.
        what: it is, for errors.
        write: this process's part; file names differ between processes.
        finish: called in the main process with the temporary directory and the checksums of all files, last.
        placed: called in the main process when the directory is in place.
    """

    path: Path
    what: str
    write: Write
    finish: Callable[[Path, Checksums], None]
    placed: Callable[[], None] = _nothing


class BackgroundWriter:
    """Writes directories in threads. A context: its end waits for what is on its way.

    All processes make the same calls. Where an error ends the block, a single process finishes what is on its way, but
    nothing behind a directory that could not be written; several drop it, as one of them may be gone.

    Args:
        processes: of the run.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._on_the_way: deque[_Part] = deque()
        self._failed = False

    def __enter__(self) -> BackgroundWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None or (self._processes.count == 1 and not self._failed):
                self.finish()
        finally:
            for part in self._on_the_way:
                part.drop(wait=self._processes.count == 1)
            self._on_the_way.clear()

    def begin(self, writing: Writing) -> None:
        """Start to write; waits while too much is on its way.

        Raises:
            DiskFullError: there was no room for an earlier directory; all that are in place are intact.
        """
        self._settle(AT_ONCE - 1)
        made: list[Path] = []
        self._in_main(lambda: made.append(temporary_directory(writing.path)), writing.what)
        temporary = self._processes.broadcast_object(made[0] if made else writing.path)
        self._on_the_way.append(_Part(writing, temporary, self._processes.rank))

    def finish(self) -> None:
        """Wait for all that was begun.

        Raises:
            DiskFullError: there was no room.
        """
        self._settle(0)

    def look(self) -> None:
        """Put in place what all processes have written by now; waits for nothing.

        Raises:
            DiskFullError: there was no room.
        """
        while self._on_the_way and not self._processes.any(self._on_the_way[0].is_writing):
            self._settle(len(self._on_the_way) - 1)

    def _settle(self, left: int) -> None:
        while len(self._on_the_way) > left:
            part = self._on_the_way[0]
            part.wait()
            results = self._processes.gather_objects([part.result])
            self._on_the_way.popleft()
            failed = [result for result in results if isinstance(result, str)]
            if failed:
                self._failed = True
                part.drop(wait=True)
                raise part.error or CheckpointError(f"another process: {failed[0]}")
            files = [result for result in results if not isinstance(result, str)]
            self._in_main(partial(part.put_in_place, files), part.writing.what)

    def _in_main(self, do: Callable[[], object], what: str) -> None:
        """Do something in the main process; where that fails, fail in all."""
        problem: Exception | None = None
        if self._processes.is_main:
            try:
                with reporting_full_disk(what):
                    do()
            except Exception as error:
                problem = error
        message = self._processes.broadcast_object(None if problem is None else str(problem))
        if message is not None:
            self._failed = True
            raise problem or CheckpointError(f"the main process: {message}")


class _Part:
    """What one process writes of a directory."""

    def __init__(self, writing: Writing, temporary: Path, rank: int) -> None:
        self.writing, self._temporary, self._rank = writing, temporary, rank
        self._files: Checksums = {}
        self.error: BaseException | None = None
        self._thread = Thread(target=self._run, name=f"writes {writing.path.name}", daemon=True)
        self._thread.start()

    @property
    def is_writing(self) -> bool:
        return self._thread.is_alive()

    @property
    def result(self) -> Checksums | str:
        """The checksums of its files, or what went wrong."""
        return self._files if self.error is None else str(self.error)

    def wait(self) -> None:
        self._thread.join()

    def drop(self, wait: bool) -> None:
        if wait:
            self._thread.join()
        if self._rank == 0:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def put_in_place(self, files: list[Checksums]) -> None:
        try:
            for rank, listed in enumerate(files):
                for entry in sorted(self._directory(rank).iterdir()) if listed else ():
                    os.replace(entry, self._temporary / entry.name)
                shutil.rmtree(self._directory(rank), ignore_errors=True)
            together = {name: checksum for listed in files for name, checksum in listed.items()}
            self.writing.finish(self._temporary, together)
            put_in_place(self._temporary, self.writing.path)
        except BaseException:
            self.drop(wait=True)
            raise
        self.writing.placed()

    def _directory(self, rank: int) -> Path:
        """Where a process writes, until all have written."""
        return self._temporary / f".{rank}"

    def _run(self) -> None:
        directory = self._directory(self._rank)
        try:
            with reporting_full_disk(self.writing.what):
                directory.mkdir()
                self.writing.write(directory)
                flush(directory)
                self._files = checksums(directory)
        except BaseException as error:
            self.error = error
