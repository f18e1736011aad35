"""Corpora of passages on disk, read as a stream.

A corpus is one file or a directory of them, `.jsonl` or `.tsv`, each perhaps with `.gz` behind it; a file has one
form, and the files of a directory may have different ones. A directory that holds none itself is read with all its
folders, as QReCC's passages lie in `commoncrawl/`, `wayback/` and `wayback-backfill/`. Blank lines are skipped.

An id is not blank; white space in it is part of it (`runs` says how TREC files hold it). A passage has one span, its
whole text, which may be blank: such a passage is never found by its words.

`.jsonl` files hold one object a line in one of three forms, which the first line of the file decides: ours, `{"id",
"text", "title"}`; BEIR's, `{"_id", "text", "title"}` (Thakur et al. 2021); Pyserini's, `{"id", "contents"}`, whose
contents have the title in their first line where they have several. The title may be absent. A `sub_title`, as
TopiOCQA's corpus has it for the section, follows the title behind `[SEP]`, as in the titles of its gold passages.

`.tsv` files hold `id`, `text` and perhaps `title`, as they stand; where the first line is `id⇥text⇥title`, the file
is one of DPR's, whose fields may be quoted (with quotes inside doubled).
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from io import BufferedIOBase
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.dialogue.records import PART_SEPARATOR, Passage
from finegrained_rlhf.runtime.console import ProgressBar

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


_SUFFIXES_IN_WORDS = f"{', '.join(CORPUS_SUFFIXES[:-1])} or {CORPUS_SUFFIXES[-1]}"
_SUSPECTS = 100_000  # duplicate hashes that are looked into; true duplicates are found among the first of them


@dataclass(frozen=True)
class Place:
    """Where reading goes on.

    Attributes:
        part: number of the file.
        offset: byte in it, of a compressed one when unpacked.
        line: number of the line that starts there, from 1.
    """

    part: int = 0
    offset: int = 0
    line: int = 1


@dataclass(frozen=True)
class CorpusScan:
    """What reading a corpus once found: it is well-formed, not empty, and no id occurs twice.

    Attributes:
        passages: their number.
        fingerprint: hexadecimal; two corpora whose files have the same bytes have the same one.
        files: name (below the directory), bytes and time of the last change (ns) of each file, to see cheaply whether
            it is still the same.
    """

    passages: int
    fingerprint: str
    files: tuple[tuple[str, int, int], ...]

    def to_json(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> CorpusScan:
        """The same again."""
        files = tuple((str(name), int(size), int(changed)) for name, size, changed in row["files"])
        return cls(int(row["passages"]), str(row["fingerprint"]), files)


def id_hash(text: str) -> int:
    """A 64-bit hash that is the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


class Corpus:
    """The passages of a file, or of all files of a directory with `CORPUS_SUFFIXES`, in the order of their names.

    Where a directory holds no such file, the files in its folders, at any depth, are the corpus.

    Attributes:
        path: as given.
        parts: the files.
        compressed: those of them that are, by gzip.

    Raises:
        DataError: there is no such file, or the directory has none.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if self.path.is_dir():
            parts = _corpus_files(self.path.iterdir()) or _corpus_files(self.path.rglob("*"))
            if not parts:
                raise DataError(f"holds no {_SUFFIXES_IN_WORDS} file, nor does any folder in it", file=self.path)
        elif self.path.is_file():
            parts = [self.path]
            if not is_corpus_file(self.path):
                raise DataError(f"expected a name that ends in {_SUFFIXES_IN_WORDS}", file=self.path)
        else:
            raise DataError("no such file", file=self.path)
        self.parts = tuple(parts)
        self.compressed = tuple(part for part in parts if is_compressed(part))
        self._forms: dict[Path, LineForm] = {}

    def __iter__(self) -> Iterator[Passage]:
        """The passages, one at a time."""
        for passage, _ in self.read():
            yield passage

    def read(self, start: Place = Place()) -> Iterator[tuple[Passage, Place]]:
        """The passages from a place on, each with the place after it.

        Raises:
            DataError: naming file, line and field.
        """
        for number in range(start.part, len(self.parts)):
            first = start if number == start.part else Place(number)
            yield from self._read_part(self.parts[number], first)

    def blocks(self, size: int, start: Place = Place()) -> Iterator[tuple[list[Passage], Place]]:
        """The same, `size` passages at a time (the last block may be shorter) with the place after each block."""
        block: list[Passage] = []
        after = start
        for passage, after in self.read(start):
            block.append(passage)
            if len(block) == size:
                yield block, after
                block = []
        if block:
            yield block, after

    def find(self, ids: Collection[str]) -> dict[str, Passage]:
        """The passages with these ids, by reading until the last of them is found.

        Raises:
            DataError: an id is not in the corpus.
        """
        wanted, passages = set(ids), dict[str, Passage]()
        for passage in self if wanted else ():
            if passage.id in wanted:
                passages[passage.id] = passage
                if len(passages) == len(wanted):
                    break
        if missing := sorted(wanted - passages.keys()):
            raise DataError(f"no passage with the id {missing[0]!r} ({len(missing)} missing)", file=self.path)
        return passages

    def scan(self, known: CorpusScan | None = None, progress: bool = True) -> CorpusScan:
        """Read everything once and check it. Keeps 8 bytes a passage in memory.

        Args:
            known: an earlier scan; taken as it is where names, sizes and times of the files have not changed.
            progress: show a bar.

        Raises:
            DataError: naming file, line and field: a broken line, an id that occurs twice, no passage at all.
        """
        folder = self.path if self.path.is_dir() else self.path.parent
        files = tuple(
            (part.relative_to(folder).as_posix(), status.st_size, status.st_mtime_ns)
            for part in self.parts
            for status in (part.stat(),)
        )
        if known is not None and known.files == files:
            return known
        hashes = array("Q")
        total = None if self.compressed else sum(size for _, size, _ in files)  # unpacked sizes are not known
        with ProgressBar("checking", total, "bytes" if total else "passages", progress) as bar:
            for block, after in self.blocks(10_000):
                hashes.extend(id_hash(passage.id) for passage in block)
                read = sum(size for _, size, _ in files[: after.part]) + after.offset
                bar.update(read - bar.done if total else len(block))
        if not hashes:
            raise DataError("holds no passage, expected at least one", file=self.path)
        twice = _repeated(hashes)
        if twice:
            self._report_duplicate(set(twice[:_SUSPECTS]))
        return CorpusScan(len(hashes), self._fingerprint, files)

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for part in self.parts:
            with open(part, "rb") as stream:
                digest.update(hashlib.file_digest(stream, "blake2b").digest())
        return digest.hexdigest()

    def _report_duplicate(self, suspects: set[int]) -> None:
        """Find the first id that truly occurs twice among those with suspicious hashes."""
        seen: dict[str, str] = {}
        for passage, after in self.read():
            if id_hash(passage.id) in suspects:
                part = self.parts[after.part]
                where = f"{part}:{after.line - 1}"
                if passage.id in seen:
                    raise DataError(f"{passage.id!r} is also the id of {seen[passage.id]}", file=where, field="id")
                seen[passage.id] = where

    def _read_part(self, path: Path, start: Place) -> Iterator[tuple[Passage, Place]]:
        form = self._forms.get(path) or self._forms.setdefault(path, form_of(path))
        with open_corpus_file(path) as stream:
            stream.seek(start.offset)
            offset, number = start.offset, start.line
            for number, raw in enumerate(stream, start.line):
                offset += len(raw)
                if not raw.strip() or (form.header and number == 1):
                    continue
                try:
                    passage = form.parse(raw.decode("utf-8"))
                except UnicodeDecodeError as error:
                    problem = f"not UTF-8 text ({error.reason} at byte {error.start} of the line)"
                    raise DataError(problem, file=f"{path}:{number}") from None
                except DataError as error:
                    raise error.at(file=f"{path}:{number}") from None
                yield passage, Place(start.part, offset, number + 1)


def _corpus_files(paths: Iterable[Path]) -> list[Path]:
    return sorted(path for path in paths if is_corpus_file(path) and path.is_file())


def _repeated(hashes: array[int]) -> list[int]:
    import numpy as np

    ordered = np.sort(np.frombuffer(hashes, dtype=np.uint64))
    return np.unique(ordered[1:][ordered[1:] == ordered[:-1]]).tolist()
