"""Reads files in a process of its own, so that one that takes too long or too much memory costs that file alone."""

from __future__ import annotations

import multiprocessing
import os
import resource
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.inscit.documents.readers import Document, read_document

_MEMORY = 4 * 2**30  # bytes of address space that reading may take
_START_S = 60.0  # that the process itself may take to begin


class ReadingProcess:
    """A process that reads one file at a time; another one takes its place where it died. A context manager.

    Args:
        seconds: that reading a file may take.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._process: Any = None
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
            DataError: it cannot be read, or not in time or memory.
        """
        connection = self._begin()
        try:
            connection.send((name, data))
            if not connection.poll(self._seconds):
                raise DataError(f"takes longer than {self._seconds:g} seconds to read")
            answer = connection.recv()
        except (EOFError, OSError):
            self._end()
            raise DataError("cannot be read: reading it ended the process") from None
        except DataError:
            self._end()
            raise
        if isinstance(answer, Document):
            return answer
        raise DataError(answer)

    def _begin(self) -> Connection:
        if self._connection is None:
            context = multiprocessing.get_context("spawn")
            self._connection, other = context.Pipe()
            self._process = context.Process(target=_serve, args=(other,), daemon=True)
            self._process.start()
            other.close()
            if not self._connection.poll(_START_S):
                self._end()
                raise DataError("cannot be read: the reading process did not begin")
            self._connection.recv()
        return self._connection

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = None


def _serve(connection: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what libraries complain about is said in a line
    connection.send("ready")
    while True:
        try:
            name, data = connection.recv()
        except (EOFError, OSError, KeyboardInterrupt):
            return
        answer: Document | str
        try:
            answer = read_document(name, data)
        except DataError as error:
            answer = error.problem
        except MemoryError:
            answer = "takes too much memory to read"
        connection.send(answer)
