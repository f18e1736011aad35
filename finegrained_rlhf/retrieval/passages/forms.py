"""The forms of a corpus's files: what a line says, and whether the file is compressed.

`.jsonl` files hold one object a line in one of three forms, which the first line of the file decides: ours,
`{"id", "text", "title"}`; BEIR's, `{"_id", "text", "title"}` (Thakur et al. 2021); Pyserini's, `{"id", "contents"}`,
whose contents have the title in their first line where they have several. The title may be absent. A `sub_title`, as
TopiOCQA's corpus has it for the section, follows the title behind `[SEP]`, as in the titles of its gold passages.

`.tsv` files hold `id`, `text` and perhaps `title`, as they stand; where the first line is `id⇥text⇥title`, the file is
one of DPR's, whose fields may be quoted (with quotes inside doubled).

Each may be compressed by gzip (`.gz` behind the name).
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import BufferedIOBase
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.dialogue.records import PART_SEPARATOR, Passage

CORPUS_SUFFIXES = (".jsonl", ".tsv", ".jsonl.gz", ".tsv.gz")
"""How the names of a corpus's files end."""
_HEADER = "id\ttext\ttitle"


@dataclass(frozen=True)
class LineForm:
    """How the lines of a file are read.

    Attributes:
        name: of the form, for errors.
        parse: a line to its passage; raises DataError.
        header: the first line of the file is no passage.
    """

    name: str
    parse: Callable[[str], Passage]
    header: bool = False


def is_corpus_file(path: Path) -> bool:
    """Whether a file's name ends as that of a corpus's file does."""
    return path.name.endswith(CORPUS_SUFFIXES)


def is_compressed(path: Path) -> bool:
    """Whether a file is compressed, by its name."""
    return path.suffix == ".gz"


@contextmanager
def open_corpus_file(path: Path) -> Iterator[BufferedIOBase]:
    """The bytes of a file, unpacked. Moving on to a place in a compressed one unpacks all that is before it.

    Raises:
        DataError: it is said to be compressed, but is not, or breaks off.
    """
    try:
        with gzip.open(path, "rb") if is_compressed(path) else open(path, "rb") as stream:
            yield stream
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"not a whole file of gzip ({error})", file=path) from None


def form_of(path: Path) -> LineForm:
    """The form that a file's first line has that is not blank; ours where it says nothing.

    Raises:
        DataError: a compressed file is damaged.
    """
    with open_corpus_file(path) as stream:
        if ".tsv" in path.suffixes[-2:]:
            quoted = stream.readline().rstrip(b"\r\n").decode("utf-8", "replace") == _HEADER
            return LineForm("DPR's" if quoted else "tsv", partial(_parse_tsv, quoted), quoted)
        first = next((line for line in stream if line.strip()), b"").decode("utf-8", "replace")
    try:
        row = json.loads(first)
    except ValueError:
        row = None
    name = (_name_of(row) if isinstance(row, dict) else None) or "ours"
    return LineForm(name, partial(_parse_json, name))


def _name_of(row: Mapping[str, Any]) -> str | None:
    """The form that an object has; None where its names do not say."""
    if "id" in row and "text" in row:
        return "ours"
    return "BEIR's" if "_id" in row else "Pyserini's" if "contents" in row else None


_FIELDS = {"ours": ("id", "text"), "BEIR's": ("_id", "text"), "Pyserini's": ("id", "contents")}


def _parse_json(form: str, line: str) -> Passage:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"not valid JSON ({error.msg} at column {error.colno}); is the file truncated?") from None
    if not isinstance(row, dict):
        raise DataError(f"expected a JSON object, got {type(row).__name__}")
    if (name := _name_of(row)) is not None and name != form:
        shapes = {key: "{" + ", ".join(f'"{field}"' for field in fields) + "}" for key, fields in _FIELDS.items()}
        raise DataError(
            f"the file's first line has the form {shapes[form]} ({form}), this one {shapes[name]} ({name}); "
            "expected one form a file"
        )
    id_field, text_field = _FIELDS[form]
    for field in (id_field, text_field):
        if not isinstance(row.get(field), str):
            problem = f"got {type(row[field]).__name__}" if field in row else "it is missing"
            raise DataError(f"expected a string, {problem}", field=field)
    title, text = _joined_title(row), row[text_field]
    if form == "Pyserini's" and not title:
        title, text = _titled(text)
    return _passage(row[id_field], text, title, id_field)


def _joined_title(row: Mapping[str, Any]) -> str:
    """`title`, and `sub_title` behind it where there is one."""
    titles = []
    for field in ("title", "sub_title"):
        title = row.get(field) or ""
        if not isinstance(title, str):
            raise DataError(f"expected a string or nothing, got {type(title).__name__}", field=field)
        titles.append(title)
    return PART_SEPARATOR.join(filter(str.strip, titles)) if titles[1].strip() else titles[0]


def _titled(contents: str) -> tuple[str, str]:
    """Title and text of Pyserini's contents; without a title where there is one line only."""
    first, _, rest = contents.partition("\n")
    return (first.strip(), rest) if rest.strip() else ("", contents)


def _parse_tsv(quoted: bool, line: str) -> Passage:
    fields = line.rstrip("\r\n").split("\t")
    if not 2 <= len(fields) <= 3:
        raise DataError(f"expected id, text and perhaps title, separated by tabs, got {len(fields)} fields")
    if quoted:
        fields = [_unquoted(field) for field in fields]
    return _passage(*fields)


def _unquoted(field: str) -> str:
    return field[1:-1].replace('""', '"') if len(field) > 1 and field[0] == field[-1] == '"' else field


def _passage(id: str, text: str, title: str = "", field: str = "id") -> Passage:
    if not id.strip():
        raise DataError(f"expected an id, got blank text {id!r}", field=field)
    if any("\ud800" <= letter <= "\udfff" for letter in id):
        raise DataError(f"expected an id, got {id!r} with half a surrogate pair, which no file can hold", field=field)
    return Passage.uncut(id, text, title)
