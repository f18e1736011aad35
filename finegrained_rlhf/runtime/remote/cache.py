"""Answers kept on disk, so that what was asked once is not asked again: not after a kill, and not by another run."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.generation.wrappers import AnswerOwner
from finegrained_rlhf.core.sqlite import MARK_UNFINISHED, UNFINISHED, execute_patiently, overwrite_deleted

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS sources (id INTEGER PRIMARY KEY, identity TEXT NOT NULL UNIQUE)",
    "CREATE TABLE IF NOT EXISTS answers (source INTEGER NOT NULL, question TEXT NOT NULL, answer TEXT NOT NULL, "
    "owner TEXT, epoch INTEGER, PRIMARY KEY (source, question)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS epochs (place TEXT PRIMARY KEY, epoch INTEGER NOT NULL) WITHOUT ROWID",
    UNFINISHED,
)
_TABLES = {"sources", "answers", "epochs", "unfinished", "sqlite_sequence"}
_OLD_COLUMNS = {"source", "question", "answer"}  # of files from before answers had owners
_COLUMNS = {*_OLD_COLUMNS, "owner", "epoch"}
_PATIENCE_S = 60.0
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
            row = self._file.execute("SELECT id FROM sources WHERE identity = ?", (identity,)).fetchone()
        except (OSError, sqlite3.Error) as error:
            raise DataError(f"expected a file of kept answers, or one that can be made: {error}", file=path) from None
        self._source = -1 if row is None else int(row[0])

    def _made(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = sqlite3.connect(self.path, timeout=_PATIENCE_S, isolation_level=None, check_same_thread=False)
        tables = {name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        columns = {row[1] for row in file.execute("PRAGMA table_info(answers)")}
        if tables - _TABLES or columns not in (set(), _OLD_COLUMNS, _COLUMNS):
            raise sqlite3.DatabaseError(f"a database with other tables: {', '.join(sorted(tables))}")
        execute_patiently(file, "PRAGMA journal_mode = WAL", _PATIENCE_S)
        file.execute("PRAGMA synchronous = NORMAL")
        file.execute("BEGIN IMMEDIATE")
        for statement in _SCHEMA:
            file.execute(statement)
        if {row[1] for row in file.execute("PRAGMA table_info(answers)")} == _OLD_COLUMNS:
            file.execute("ALTER TABLE answers ADD COLUMN owner TEXT")
            file.execute("ALTER TABLE answers ADD COLUMN epoch INTEGER")
        file.execute("INSERT OR IGNORE INTO sources (identity) VALUES (?)", (self.identity,))
        file.execute("COMMIT")
        if file.execute("SELECT 1 FROM unfinished").fetchone():  # a process was killed while it dropped answers
            with suppress(sqlite3.Error):  # others are busy: the next one who opens the file does it
                overwrite_deleted(self.path, 0.0)
        return file

    def get(self, questions: Iterable[str]) -> dict[str, Any]:
        """The answers that are kept, by question.

        Raises:
            DataError: the file cannot be read any more.
        """
        digests = {_digest(question): question for question in questions}
        answers, names = {}, list(digests)
        for start in range(0, len(names), _AT_ONCE):
            part = names[start : start + _AT_ONCE]
            places = ",".join("?" * len(part))
            query = f"SELECT question, answer FROM answers WHERE source = ? AND question IN ({places})"
            rows = self._rows(query, (self._source, *part))
            answers.update({digests[digest]: json.loads(answer) for digest, answer in rows})
        return answers

    def put(self, question: str, answer: Any, owner: AnswerOwner | None = None) -> None:
        """Keep an answer, a JSON value. The first one of a question stays.

        Args:
            question: a text.
            answer: to it.
            owner: whose words question and answer hold; where the owner's answers were dropped (`clear`) after this
                epoch, nothing is kept. None: not known.

        Raises:
            DataError: it cannot be written.
        """
        name, place, epoch = (None, None, None) if owner is None else (owner.name, owner.place, owner.epoch)
        try:
            self._file.execute(
                "INSERT OR IGNORE INTO answers (source, question, answer, owner, epoch) SELECT ?, ?, ?, ?, ? "
                "WHERE NOT EXISTS (SELECT 1 FROM epochs WHERE place = ? AND epoch > ?)",
                (self._source, _digest(question), json.dumps(answer), name, epoch, place, epoch),
            )
        except sqlite3.Error as error:
            raise DataError(f"an answer cannot be kept: {error}", file=self.path) from None

    def drop(self, question: str) -> None:
        """Drop the answer to a question, if one is kept.

        Raises:
            DataError: the file cannot be written.
        """
        try:
            self._file.execute(
                "DELETE FROM answers WHERE source = ? AND question = ?", (self._source, _digest(question))
            )
            self._file.execute(MARK_UNFINISHED)  # what is left of it is overwritten at the next opening or `clear`
        except sqlite3.Error as error:
            raise DataError(f"an answer cannot be dropped: {error}", file=self.path) from None

    def clear(self, owner: AnswerOwner | None = None) -> None:
        """Drop answers, and leave nothing of them in the file or its log.

        Args:
            owner: whose answers from before this epoch are dropped, whatever gave them, and none is kept from then on;
                with them go those of this identity whose owner is not known. None: every answer of this identity.

        Raises:
            DataError: it cannot be written, or other processes keep it busy: then what is left of the answers goes at
                the next opening or the next call.
        """
        try:
            with closing(sqlite3.connect(self.path, timeout=_PATIENCE_S, isolation_level=None)) as file, file:
                file.execute("PRAGMA secure_delete = ON")
                file.execute("BEGIN IMMEDIATE")
                if owner is None:
                    dropped = file.execute("DELETE FROM answers WHERE source = ?", (self._source,))
                else:
                    file.execute(
                        "INSERT INTO epochs (place, epoch) VALUES (?, ?) "
                        "ON CONFLICT (place) DO UPDATE SET epoch = MAX(epoch, excluded.epoch)",
                        (owner.place, owner.epoch),
                    )
                    dropped = file.execute(
                        "DELETE FROM answers WHERE (owner = ? AND epoch < ?) OR (source = ? AND owner IS NULL)",
                        (owner.name, owner.epoch, self._source),
                    )
                if dropped.rowcount:
                    file.execute(MARK_UNFINISHED)
            overwrite_deleted(self.path, _PATIENCE_S)
        except sqlite3.Error as error:
            raise DataError(f"kept answers cannot be dropped: {error}; try again", file=self.path) from None

    def counts(self) -> dict[str, int]:
        """How many answers the file has, by what gave them; those without any are left out."""
        joined = "answers JOIN sources ON sources.id = answers.source"
        return dict(self._rows(f"SELECT identity, COUNT(*) FROM {joined} GROUP BY identity"))

    def _rows(self, query: str, values: Iterable[Any] = ()) -> list[Any]:
        try:
            return self._file.execute(query, tuple(values)).fetchall()
        except sqlite3.Error as error:
            raise DataError(f"kept answers cannot be read: {error}", file=self.path) from None

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


def _digest(question: str) -> str:
    return hashlib.sha256(question.encode("utf-8", "surrogatepass")).hexdigest()
