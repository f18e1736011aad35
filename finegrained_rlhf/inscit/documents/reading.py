"""Reads files in a process of its own, so that one that takes too long or too much memory costs that file alone."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import TracebackType

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.inscit.documents.readers import Document, NotNow, read_document

_MEMORY = 4 * 2**30  # bytes of address space that reading may take
_START_S = 60.0  # that the process itself may take to begin
# No process of `multiprocessing`: that would run a user's script a second time where it does not guard its main part.
_PROGRAM = f"import sys; from {__name__} import _serve; _serve(int(sys.argv[1]))"


class ReadingProcess:
    """A process that reads one file at a time; another one takes its place where it died. A context manager.

    Args:
        seconds: that reading a file may take.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def __enter__(self) -> ReadingProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def read(self, name: str, data: bytes) -> Document:
        """The document of a file.

        Args:
            name: of the file; its end says the format.
            data: its bytes.

        Raises:
            DataError: it cannot be read.
            NotNow: not in time or memory, or the process ended.
        """
        connection = self._begin()
        try:
            connection.send((name, data))
            if not connection.poll(self._seconds):
                raise NotNow(f"takes longer than {self._seconds:g} seconds to read")
            answer = connection.recv()
        except (EOFError, OSError):
            self._end()
            raise NotNow("cannot be read: reading it ended the process") from None
        except DataError:
            self._end()
            raise
        if isinstance(answer, Document):
            return answer
        raise answer

    def _begin(self) -> Connection:
        if self._connection is None:
            self._connection, other = Pipe()
            with other:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", _PROGRAM, str(other.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[other.fileno()],
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                )
            try:
                began = self._connection.poll(_START_S) and self._connection.recv()
            except EOFError:
                began = False
            if not began:
                self._end()
                raise NotNow("cannot be read: the reading process did not begin")
        return self._connection

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = None


def _serve(descriptor: int) -> None:
    connection = Connection(descriptor)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what libraries complain about is said in a line
    connection.send("ready")
    while True:
        try:
            name, data = connection.recv()
        except (EOFError, OSError, KeyboardInterrupt):
            return
        answer: Document | DataError
        try:
            answer = read_document(name, data)
        except DataError as error:
            answer = error
        connection.send(answer)
