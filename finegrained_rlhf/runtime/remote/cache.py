"""Answers kept on disk, so that what was asked once is not asked again: not after a kill, and not by another run.

Knows texts and what was answered. Does not know where the answers come from, or what they mean.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.errors import DataError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS sources (id INTEGER PRIMARY KEY, identity TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS answers (
    source INTEGER NOT NULL, question TEXT NOT NULL, answer TEXT NOT NULL, PRIMARY KEY (source, question)
) WITHOUT ROWID;
"""
_AT_ONCE = 500  # questions in one query


class AnswerCache:
    """A SQLite file of answers, under what gave them and a digest of what was asked. The texts are not in it.

    Every answer is on disk as soon as `put` returns, and survives a kill of the process. Several processes of one
    machine may use one file; it must not lie on a network file system.

    Args:
        path: the file; its directory is made.
        identity: what gives the answers, with every setting that changes them; without a secret.
        read_only: for a file that must be there, of which nothing is changed.

    Raises:
        DataError: the file is missing, is no such file, or cannot be written.
    """

    def __init__(self, path: str | Path, identity: str, read_only: bool = False) -> None:
        self.path, self.identity = Path(path), identity
        if read_only and not self.path.is_file():
            raise DataError("there are no kept answers: the file is missing", file=self.path)
        try:
            if read_only:
                self._file = sqlite3.connect(f"{self.path.resolve().as_uri()}?mode=ro", uri=True, timeout=60.0)
            else:
                self._file = self._made()
            found = self._file.execute("SELECT id FROM sources WHERE identity = ?", (identity,)).fetchone()
        except (OSError, sqlite3.Error) as error:
            raise DataError(f"expected a file of kept answers, or one that can be made: {error}", file=path) from None
        self._source = -1 if found is None else int(found[0])

    def _made(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = sqlite3.connect(self.path, timeout=60.0, isolation_level=None, check_same_thread=False)
        tables = {name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        columns = {row[1] for row in file.execute("PRAGMA table_info(answers)")}
        if tables - {"sources", "answers"} or (columns and columns != {"source", "question", "answer"}):
            raise sqlite3.DatabaseError(f"a database with other tables: {', '.join(sorted(tables))}")
        _patiently(lambda: file.execute("PRAGMA journal_mode = WAL").fetchone())
        file.execute("PRAGMA synchronous = NORMAL")
        _patiently(lambda: file.executescript(_SCHEMA))
        file.execute("INSERT OR IGNORE INTO sources (identity) VALUES (?)", (self.identity,))
        return file

    def get(self, questions: Iterable[str]) -> dict[str, Any]:
        """The answers that are kept, by question.

        Raises:
            DataError: the file cannot be read any more.
        """
        digests = {_digest(question): question for question in questions}
        found, names = {}, list(digests)
        for start in range(0, len(names), _AT_ONCE):
            part = names[start : start + _AT_ONCE]
            places = ",".join("?" * len(part))
            asked = f"SELECT question, answer FROM answers WHERE source = ? AND question IN ({places})"
            rows = self._rows(asked, (self._source, *part))
            found.update({digests[digest]: json.loads(answer) for digest, answer in rows})
        return found

    def put(self, question: str, answer: Any) -> None:
        """Keep an answer, a JSON value. The first one of a question stays.

        Raises:
            DataError: it cannot be written.
        """
        try:
            self._file.execute(
                "INSERT OR IGNORE INTO answers VALUES (?, ?, ?)",
                (self._source, _digest(question), json.dumps(answer, ensure_ascii=False)),
            )
        except sqlite3.Error as error:
            raise DataError(f"an answer cannot be kept: {error}", file=self.path) from None

    def clear(self) -> None:
        """Drop every answer of this identity, and leave nothing of it in the file or its log.

        Raises:
            DataError: it cannot be written, or other processes keep it busy.
        """
        try:
            self._file.execute("PRAGMA secure_delete = ON")
            self._file.execute("PRAGMA temp_store = MEMORY")
            self._file.execute("DELETE FROM answers WHERE source = ?", (self._source,))
            _patiently(lambda: self._file.execute("VACUUM"))
            if self._file.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                raise sqlite3.OperationalError("other processes keep reading; try again")
        except sqlite3.Error as error:
            raise DataError(f"kept answers cannot be dropped: {error}", file=self.path) from None

    def counts(self) -> dict[str, int]:
        """How many answers the file has, by what gave them; those without any are left out."""
        joined = "answers JOIN sources ON sources.id = answers.source"
        return dict(self._rows(f"SELECT identity, COUNT(*) FROM {joined} GROUP BY identity"))

    def _rows(self, asked: str, values: Iterable[Any] = ()) -> list[Any]:
        try:
            return self._file.execute(asked, tuple(values)).fetchall()
        except sqlite3.Error as error:
            raise DataError(f"kept answers cannot be read: {error}", file=self.path) from None

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


def _digest(question: str) -> str:
    return hashlib.sha256(question.encode("utf-8", "surrogatepass")).hexdigest()


def _patiently(what: Any, seconds: float = 60.0) -> None:
    """Try again while another process is making the same file: some statements do not wait by themselves."""
    until = time.monotonic() + seconds
    while True:
        try:
            what()
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(0.02)
