"""The indexes of documents below a directory, opened when they are first asked, and the conversations with them."""

from __future__ import annotations

import os
import secrets
import threading
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING

from finegrained_rlhf.core.errors import DataError

if TYPE_CHECKING:  # what answers needs torch, which pages do without
    from finegrained_rlhf.inscit.asking.assistant import DocumentAssistant, Session
    from finegrained_rlhf.inscit.asking.job import AskSettings

_RECORD = "ask.json"
_DEPTH = 4  # directories below the one that is served
_SESSIONS = 64
_OPEN = 2


class Desk:
    """Indexes by their paths below a directory.

    Args:
        directory: resolved; nothing outside it is listed or opened by name.
        answering: how they are answered from; None: with the models that are found by themselves.
    """

    def __init__(self, directory: Path, answering: AskSettings | None = None) -> None:
        self.directory, self._answering = directory, answering
        self._lock = threading.Lock()
        self._open: OrderedDict[str, tuple[bytes, DocumentAssistant]] = OrderedDict()  # with the record of the index
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def names(self) -> list[str]:
        """Of all indexes, the newest first."""
        found = []
        for place, folders, files in os.walk(self.directory):
            depth = len(Path(place).relative_to(self.directory).parts)
            folders[:] = [] if depth >= _DEPTH else sorted(name for name in folders if not name.startswith("."))
            if _RECORD in files and "documents.sqlite" in files:
                found.append(Path(place))
                folders[:] = []
        found.sort(key=lambda path: (path / _RECORD).stat().st_mtime, reverse=True)
        return [str(path.relative_to(self.directory)) for path in found]

    def assistant(self, name: str) -> DocumentAssistant:
        """The assistant for an index; one that was updated is opened again, and its conversations are over.

        Raises:
            DataError: there is no such index below the directory.
            ModelError: an encoder or model cannot be read.
            ConfigError: the index was made with another encoder.
        """
        from finegrained_rlhf.inscit.asking.job import AskSettings, open_index

        with self._lock:
            if name in self._open and self._open[name][0] != self._record(name):
                self._close(name)
            if name not in self._open:
                if name not in self.names():
                    raise DataError(f"no index of documents {name!r} below the directory")
                record = self._record(name)
                assistant, _ = open_index(self.directory / name, self._answering or AskSettings())
                self._open[name] = record, assistant
                while len(self._open) > _OPEN:
                    self._close(next(iter(self._open)))
            self._open.move_to_end(name)
            return self._open[name][1]

    def _record(self, name: str) -> bytes:
        try:
            return (self.directory / name / _RECORD).read_bytes()
        except OSError:
            return b""

    def _close(self, name: str) -> None:
        """Forget an assistant and the conversations with it, which would keep its models in memory."""
        _, gone = self._open.pop(name)
        for id in [id for id, session in self._sessions.items() if session.assistant is gone]:
            del self._sessions[id]

    def session(self, name: str, id: str | None) -> tuple[str, Session]:
        """A conversation and its id; a new one where `id` is None or not known any more."""
        assistant = self.assistant(name)
        with self._lock:
            known = self._sessions.get(id or "")
            if id is None or known is None or known.assistant is not assistant:
                id = secrets.token_urlsafe(16)
                self._sessions[id] = assistant.session()
                while len(self._sessions) > _SESSIONS:
                    self._sessions.popitem(last=False)
            self._sessions.move_to_end(id)
            return id, self._sessions[id]

    def known_session(self, id: str) -> Session:
        """A conversation that goes on.

        Raises:
            DataError: it is not known any more.
        """
        with self._lock:
            known = self._sessions.get(id)
        if known is None:
            raise DataError("this conversation is over; ask again")
        return known
