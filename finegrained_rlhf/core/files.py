"""Files that are either whole or absent: written under a temporary name, flushed, renamed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.errors import DataError

Write = Callable[[Path], None]
"""Writes files into a directory, of values that were taken before: what is going on may change them meanwhile."""


def write_all(writes: Iterable[Write]) -> Write:
    """One after the other, into the same directory."""
    listed = list(writes)

    def write(directory: Path) -> None:
        for one in listed:
            one(directory)

    return write


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Give an error of the operating system the file that was to be written: a write itself names none."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(path)
        raise


@contextmanager
def atomic_path(path: str | Path, mode: int = 0o644) -> Iterator[Path]:
    """A temporary path beside `path` that replaces it when the block ends well and is removed when it does not.

    Args:
        path: the file.
        mode: who may read and write it then; until then its owner alone may.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    os.close(handle)
    temporary = Path(name)
    try:
        with naming(path):
            yield temporary
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_directory(path: str | Path) -> Iterator[Path]:
    """A temporary directory beside `path` that takes its place when the block ends well."""
    temporary = temporary_directory(path)
    try:
        with naming(path):
            yield temporary
            flush(temporary)
        put_in_place(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def temporary_directory(path: str | Path) -> Path:
    """A new directory beside `path` under a temporary name."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp"))


def flush(directory: Path) -> None:
    """Bring all files below a directory to the disk."""
    for file in directory.rglob("*"):
        if file.is_file():
            with open(file, "rb") as stream:
                os.fsync(stream.fileno())


def put_in_place(temporary: Path, path: str | Path) -> None:
    """Give a flushed temporary directory its name, instead of the directory that may have it."""
    path, old = Path(path), temporary.with_suffix(".old")
    os.chmod(temporary, 0o755)
    if path.exists():
        os.replace(path, old)
    try:
        os.replace(temporary, path)
    except BaseException:
        if old.exists():
            os.replace(old, path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def sha256_of(file: Path) -> str:
    """The SHA-256 of a whole file, 64 hexadecimal digits.

    Raises:
        OSError: it cannot be read.
    """
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_text(path: str | Path, text: str, mode: int = 0o644) -> None:
    """Write `text` atomically as UTF-8, into a file of that mode."""
    with atomic_path(path, mode) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | Path, value: Any) -> None:
    """Write one JSON document atomically (indented, UTF-8, no NaN)."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_jsonl(path: str | Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write one JSON object a line, atomically."""
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8") as stream:
        for row in rows:
            stream.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")


def _text(path: str | Path) -> str:
    """The text of a file.

    Raises:
        DataError: it is missing, a directory, not UTF-8, or begins with a byte order mark.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise DataError("no such file", file=path) from None
    except IsADirectoryError:
        raise DataError("is a directory, expected a file", file=path) from None
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8 text ({error.reason} at byte {error.start})", file=path) from None
    if text.startswith("\ufeff"):
        raise DataError("begins with a byte order mark (BOM); save it as UTF-8 without one", file=path)
    return text


def read_json(path: str | Path) -> Any:
    """Read one JSON document.

    Raises:
        DataError: the file is missing or is not JSON (a truncated file says where it ends).
    """
    try:
        return json.loads(_text(path))
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}: {error.msg}"
        lines = error.msg == "Extra data" and error.lineno > 1
        hint = "it looks like JSON Lines; expected one JSON document" if lines else "is the file truncated?"
        raise DataError(f"not valid JSON ({where}); {hint}", file=path) from None
    except (RecursionError, ValueError) as error:
        raise DataError(f"not usable JSON: {_unusable(error)}", file=path) from None


def _unusable(error: RecursionError | ValueError) -> str:
    return "brackets are nested too deep" if isinstance(error, RecursionError) else "a number has too many digits"


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def read_jsonl(path: str | Path) -> list[dict[str, Any]]:
    """Read one JSON object a line; blank lines are skipped.

    Raises:
        DataError: the file is missing, or a line is not a JSON object (records count from 0).
    """
    text = _text(path)
    lines = text.split("\n")
    rows: list[dict[str, Any]] = []
    for line in (line for line in lines if line.strip()):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            is_document = not rows and _is_json(text)
            hint = (
                "it is one JSON document; expected JSON lines, an object a line"
                if is_document
                else "is the file truncated?"
            )
            raise DataError(f"not valid JSON ({error.msg}); {hint}", file=path, record=len(rows)) from None
        except (RecursionError, ValueError) as error:
            raise DataError(f"not usable JSON: {_unusable(error)}", file=path, record=len(rows)) from None
        if not isinstance(row, dict):
            raise DataError(f"expected a JSON object, got {type(row).__name__}", file=path, record=len(rows))
        rows.append(row)
    return rows
