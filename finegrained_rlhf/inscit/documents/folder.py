"""The index of a folder of documents: what was read of each file, by its content, and retrievers over all passages.

A file whose size and times did not change is not read again, and a passage whose text did not change is not encoded
again. What cannot be read is named and left out. Links that lead out of the folder are not followed. The index of
before, and its documents, stay until the next change, for whoever has it open.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sqlite3
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import read_json, write_json, write_jsonl
from finegrained_rlhf.core.sqlite import execute_patiently
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.inscit.documents.passages import WORDS, DocumentPassage, cut_document
from finegrained_rlhf.inscit.documents.readers import READERS, Block, Document, NotNow, printable
from finegrained_rlhf.inscit.documents.reading import ReadingProcess
from finegrained_rlhf.retrieval.dense.config import EncoderConfig, TextEncoder, TextKind
from finegrained_rlhf.retrieval.protocol import Retriever, RetrieverConfig
from finegrained_rlhf.runtime.console import ProgressBar
from finegrained_rlhf.runtime.directory.lock import locked_file

RECORD = "ask.json"
"""In the directory of an index: what it is an index of."""
_VERSION = 3  # also of how documents are read: files of an index of another one are read anew
_FORM = f"finegrained-documents/{_VERSION}"
_TABLES = """
CREATE TABLE IF NOT EXISTS files (file TEXT PRIMARY KEY, size INTEGER, changed TEXT, sha TEXT, problem TEXT);
CREATE TABLE IF NOT EXISTS before (sha TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS documents (sha TEXT PRIMARY KEY, text TEXT, title TEXT, blocks TEXT);
CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, vector BLOB);
"""
_FORGET = """
BEGIN;
DELETE FROM documents WHERE sha NOT IN (SELECT sha FROM files UNION SELECT sha FROM before);
DELETE FROM before;
INSERT INTO before SELECT DISTINCT sha FROM files WHERE problem IS NULL;
COMMIT;
"""
"""Documents are kept as long as the index before this one has them."""
_PATIENCE_S = 60.0


@dataclass(frozen=True)
class Left:
    """A file that was left out.

    Attributes:
        file: relative to the folder.
        problem: why.
    """

    file: str
    problem: str

    def __str__(self) -> str:
        return f"{self.file}: {self.problem}"


@dataclass(frozen=True)
class FolderReport:
    """What an update found.

    Attributes:
        files: that are in the index.
        read: of them, those that were read now: new or changed.
        passages: of all files.
        left: what was left out, and why.
        other: how many files have another ending, by it.
        anew: whether there was an index of another version, in whose place this one was made.
    """

    files: int
    read: int
    passages: int
    left: tuple[Left, ...]
    other: Mapping[str, int]
    anew: bool = False

    def lines(self) -> list[str]:
        """What there is to say, a line each."""
        lines = [f"{self.files:,} files, {self.read:,} of them new or changed; {self.passages:,} passages"]
        lines += ["the index was of another version and was made anew"] if self.anew else []
        lines += [f"left out: {one}" for one in self.left]
        if self.other:
            kinds = ", ".join(f"{count:,} {end or 'without an ending'}" for end, count in sorted(self.other.items()))
            lines.append(f"no documents: {kinds}")
        return [printable(line) for line in lines]


class KeptEncoder:
    """An encoder that keeps the vectors of passages in an index, so that none is encoded twice; a `TextEncoder`."""

    def __init__(self, encoder: TextEncoder, file: Path) -> None:
        self._encoder, self._file = encoder, file
        self.dimension, self.batch_size = encoder.dimension, encoder.batch_size
        self._name = json.dumps(encoder.identity, sort_keys=True)

    @property
    def identity(self) -> dict[str, Any]:
        """That of the encoder."""
        return self._encoder.identity

    def encode(self, texts: Sequence[str], kind: TextKind) -> NDArray[np.float32]:
        """Vectors of texts, fp32 [N, dimension]."""
        return self._encoder.encode(texts, kind)

    def parts(self, passage: Passage) -> tuple[str, ...]:
        """What is read of a passage."""
        return self._encoder.parts(passage)

    def encode_parts(self, passages: Sequence[tuple[str, ...]]) -> NDArray[np.float32]:
        """Vectors of passages by their `parts`, fp32 [N, dimension]; those that are kept are not computed."""
        keys = [
            hashlib.blake2b("\0".join((self._name, *parts)).encode(), digest_size=16).digest() for parts in passages
        ]
        vectors = np.empty((len(passages), self.dimension), np.float32)
        with closing(sqlite3.connect(self._file, timeout=_PATIENCE_S)) as base:
            missing = []
            for row, key in enumerate(keys):
                found = base.execute("SELECT vector FROM vectors WHERE key = ?", (key,)).fetchone()
                if found is None or len(found[0]) != 4 * self.dimension:
                    missing.append(row)
                else:
                    vectors[row] = np.frombuffer(found[0], np.float32)
            if missing:
                vectors[missing] = self._encoder.encode_parts([passages[row] for row in missing])
                with base:
                    new = [(keys[row], vectors[row].tobytes()) for row in missing]
                    base.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?)", new)
        return vectors


@dataclass(frozen=True)
class KeptEncoderConfig(EncoderConfig):
    """An encoder whose vectors of passages are kept.

    Attributes:
        kept: SQLite file of the index.
    """

    kept: str = ""

    def load(self) -> TextEncoder:
        """Open the encoder. Raises what `EncoderConfig.load` does."""
        return KeptEncoder(super().load(), Path(self.kept))


@dataclass(frozen=True)
class FolderConfig(Settings):
    """How a folder is read and searched.

    Attributes:
        retrievers: by name; their rankings are fused. Each has its index below that of the folder.
        words: of a passage, about.
        largest: bytes of a file at most; a larger one is left out.
        seconds: that reading a file may take.
    """

    retrievers: Mapping[str, RetrieverConfig] = field(default_factory=dict)
    words: int = WORDS
    largest: int = 50_000_000
    seconds: float = 30.0

    def __post_init__(self) -> None:
        if self.words < 1 or self.largest < 1 or self.seconds <= 0:
            raise ConfigError("words, largest and seconds: expected numbers above 0")


class DocumentIndex:
    """A folder's passages and the retrievers over them; finds passages by id.

    Args:
        directory: of the index.
        config: how the folder is read and searched; as in `update`.

    Raises:
        DataError: the directory holds no index, or a damaged one.
    """

    def __init__(self, directory: str | Path, config: FolderConfig) -> None:
        self.directory, self.config = Path(directory), config
        record = self._record()
        while not self._read(record):
            newer = self._record()
            if newer == record:
                raise DataError("is damaged; remove it", file=self._generation)
            record = newer  # it was brought up to date twice since the record was read

    def _record(self) -> dict[str, Any]:
        try:
            record = read_json(self.directory / RECORD)
        except DataError:
            raise DataError(f"holds no index of documents ({RECORD})", file=self.directory) from None
        if not isinstance(record, dict) or record.get("form") != _FORM:
            raise DataError("is an index of another version; finegrained ask makes it anew", file=self.directory)
        return record

    def _read(self, record: Mapping[str, Any]) -> bool:
        """Read the passages that a record names; whether they are there and whole."""
        self._generation = self.directory / "passages" / _fingerprint(record, self.directory)
        self._passages, self._shas = dict[str, DocumentPassage](), dict[str, str]()
        try:
            for row in _rows(self._generation / "passages.jsonl"):
                spans, titles = tuple((start, end) for start, end in row["sentences"]), tuple(row["titles"])
                passage = DocumentPassage(row["id"], row["file"], titles, row["passage"], row["start"], spans)
                self._passages[passage.id] = passage
                self._shas[passage.file] = row["sha"]
        except (OSError, ValueError, KeyError, TypeError):
            return False
        return True

    def __len__(self) -> int:
        return len(self._passages)

    def __getitem__(self, id: str) -> DocumentPassage:
        return self._passages[id]

    def passages(self) -> Iterable[DocumentPassage]:
        """All of them, in the order of files."""
        return self._passages.values()

    def find(self, ids: Iterable[str]) -> dict[str, Passage]:
        """The passages with these ids, as retrievers read them.

        Raises:
            DataError: there is none with one of them.
        """
        try:
            return {id: self._passages[id].record() for id in ids}
        except KeyError as error:
            raise DataError(f"no passage with the id {error.args[0]!r}", file=self.directory) from None

    def source(self, file: str) -> str:
        """The text of a document, in whose characters places are.

        Raises:
            DataError: the index has no such file.
        """
        with _base_of(self.directory) as base:
            row = base.execute("SELECT text FROM documents WHERE sha = ?", (self._shas.get(file),)).fetchone()
        if row is None:
            raise DataError("is not in the index", file=file)
        return str(row[0])

    def retrievers(self) -> dict[str, Retriever]:
        """Those of the retrievers that the index was made with, opened. Raises what `RetrieverConfig.open` does."""
        configs = _with_kept(self.config.retrievers, self.directory).items()
        there = [(name, config) for name, config in configs if (self._generation / name).is_dir()]
        return {name: config.open(self._generation / name) for name, config in there}


def update_index(docs: str | Path, directory: str | Path, config: FolderConfig, progress: bool = True) -> FolderReport:
    """Bring the index of a folder up to date, or make it; the same call goes on where one was stopped.

    Args:
        docs: the folder.
        directory: of the index; not inside of the folder, unless its name begins with a full stop.
        config: how the folder is read and searched.
        progress: show bars.

    Raises:
        DataError: no such folder, nothing in it can be read, or the index is damaged.
        ConfigError: the directory holds the index of another folder, or another process is at work on it.
    """
    docs, directory = Path(os.path.expanduser(docs)), Path(directory)
    if not docs.is_dir():
        problem = "is a file" if docs.exists() else "no such directory"
        raise DataError(f"{problem}; expected a folder of documents", file=docs)
    _require_index_of(docs, directory)
    with locked_file(directory / ".lock", wait=False), _base_of(directory) as base:
        anew = _make_tables(base)
        read, left, other = _read_all(docs, directory, base, config, progress)
        names = [name for (name,) in base.execute("SELECT file FROM files WHERE problem IS NULL ORDER BY file")]
        if not names:
            raise DataError("holds no document that can be read" + (f"; {left[0]}" if left else ""), file=docs)
        passages = _write_passages(docs, directory, base, config, progress)
    return FolderReport(len(names), read, passages, tuple(left), other, anew)


def _require_index_of(docs: Path, directory: Path) -> None:
    if any(place.exists() and not place.is_dir() for place in (directory, *directory.parents)):
        raise ConfigError(f"index: {directory} is no directory and cannot be made one")
    if not (directory / RECORD).exists():
        if directory.exists() and any(name not in (".lock", "documents.sqlite") for name in os.listdir(directory)):
            if not (directory / "documents.sqlite").exists():
                raise ConfigError(f"index: {directory} holds something else; name a new directory")
        return
    record = read_json(directory / RECORD)
    of = record.get("docs") if isinstance(record, dict) else "something else"
    if of != _written(docs.resolve()):
        raise ConfigError(f"index: {directory} is the index of {of}; name another directory")


def _written(path: str | Path) -> str:
    """A path as UTF-8 can hold it."""
    return str(path).encode("utf-8", "backslashreplace").decode()


def _fingerprint(record: Mapping[str, Any], directory: Path) -> str:
    """The name of a generation, which is never a path: whoever wrote the record may be a stranger."""
    name = record.get("fingerprint")
    if not isinstance(name, str) or not re.fullmatch("[0-9a-f]{16}", name):
        raise DataError("fingerprint: expected 16 hexadecimal digits", file=directory / RECORD)
    return name


@contextmanager
def _base_of(directory: Path) -> Iterator[sqlite3.Connection]:
    file = directory / "documents.sqlite"
    try:
        with closing(sqlite3.connect(file, timeout=_PATIENCE_S)) as base:
            execute_patiently(base, "PRAGMA journal_mode = WAL", _PATIENCE_S)
            base.execute("PRAGMA synchronous = NORMAL")  # a commit waits for no disk, so that each file has one
            yield base
    except sqlite3.Error as error:
        raise DataError(f"cannot be used ({error}); where it is damaged, remove the index", file=file) from None


def _make_tables(base: sqlite3.Connection) -> bool:
    """Make the tables; whether those of another version were there, of which the vectors alone are kept."""
    other = base.execute("PRAGMA user_version").fetchone() != (_VERSION,)
    anew = other and base.execute("SELECT 1 FROM sqlite_schema WHERE name = 'files'").fetchone() is not None
    old = "DROP TABLE IF EXISTS files; DROP TABLE IF EXISTS documents; DROP TABLE IF EXISTS before;" if other else ""
    base.executescript(f"BEGIN; {old} {_TABLES} PRAGMA user_version = {_VERSION}; COMMIT;")
    return anew


def _walk(docs: Path, index: Path, failed: list[Left]) -> Iterator[tuple[str, Path]]:
    """The files of a folder in order, with their names in it; hidden ones and the index are passed over.

    Directories that cannot be read are added to `failed`.
    """

    def keep(error: OSError) -> None:
        place = _written(Path(error.filename).relative_to(docs).as_posix())
        failed.append(Left(place, f"cannot be read ({error.strerror or type(error).__name__})"))

    index = index.resolve()
    for place, folders, files in os.walk(docs, onerror=keep):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and (Path(place) / f).resolve() != index)
        for name in sorted(files):
            if not name.startswith("."):
                path = Path(place) / name
                yield path.relative_to(docs).as_posix(), path


def _read_all(
    docs: Path, directory: Path, base: sqlite3.Connection, config: FolderConfig, progress: bool
) -> tuple[int, list[Left], Counter[str]]:
    """Read what is new; returns how many files that were, what was left out and how many are no documents."""
    known = {name: rest for name, *rest in base.execute("SELECT file, size, changed, sha, problem FROM files")}
    left = list[Left]()
    files = list(_walk(docs, directory, left))
    unread = tuple("" if one.file == "." else f"{one.file}/" for one in left)  # what is known below these is kept
    other = Counter(path.suffix.lower() for _, path in files if path.suffix.lower() not in READERS)
    files = [(name, path) for name, path in files if path.suffix.lower() in READERS]
    seen, read, root = {name for name in known if name.startswith(unread)}, 0, docs.resolve()
    with ProgressBar("reading", len(files), "files", progress) as bar, ReadingProcess(config.seconds) as reading:
        for name, path in files:
            bar.update()
            name = _written(name)
            seen.add(name)
            size, changed, problem = _status(path, root, config.largest)
            before = known.get(name)
            if before is not None and before[:2] == [size, changed] and problem is None:
                problem = before[3]
            else:
                sha = ""
                if problem is None:
                    try:
                        sha, problem = _read_one(path, name, base, reading)
                        read += problem is None
                    except NotNow as error:
                        size, problem = -1, error.problem  # it is tried again
                base.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?)", (name, size, changed, sha, problem))
                base.commit()
            if problem is not None:
                left.append(Left(name, problem))
    base.executemany("DELETE FROM files WHERE file = ?", [(name,) for name in known if name not in seen])
    base.commit()
    return read, left, other


def _status(path: Path, root: Path, largest: int) -> tuple[int, str, str | None]:
    """Size, times of the last change (ns) as it says itself and as the system says, and why a file is not read."""
    try:
        status = path.stat()
        if not path.resolve().is_relative_to(root):
            return 0, "", "is a link out of the folder"
    except OSError as error:
        return 0, "", f"cannot be read ({error.strerror or type(error).__name__})"
    if not stat.S_ISREG(status.st_mode):
        return 0, "", "is no ordinary file"
    if status.st_size > largest:
        return 0, "", f"has {status.st_size:,} bytes, more than {largest:,}"
    return status.st_size, f"{status.st_mtime_ns} {status.st_ctime_ns}", None


def _read_one(path: Path, name: str, base: sqlite3.Connection, reading: ReadingProcess) -> tuple[str, str | None]:
    """Read a file into the documents. Returns its digest, and why it cannot be read.

    Raises:
        NotNow: it could not be read for another reason than its content.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise NotNow(f"cannot be read ({error.strerror or type(error).__name__})") from None
    sha = hashlib.sha256(path.suffix.lower().encode() + b"\0" + data).hexdigest()
    if base.execute("SELECT 1 FROM documents WHERE sha = ?", (sha,)).fetchone():
        return sha, None
    try:
        document = reading.read(name, data)
    except NotNow:
        raise
    except DataError as error:
        return sha, error.problem
    blocks = json.dumps([(block.start, block.end, block.level) for block in document.blocks])
    base.execute("INSERT INTO documents VALUES (?, ?, ?, ?)", (sha, document.text, document.title, blocks))
    return sha, None


def _write_passages(docs: Path, directory: Path, base: sqlite3.Connection, config: FolderConfig, progress: bool) -> int:
    """Cut all documents and build the retrievers, where anything changed; returns how many passages there are."""
    searched = re.sub(" at 0x[0-9a-f]+", "", str(sorted(config.retrievers.items())))  # no place in memory
    digest = hashlib.sha256(f"{_FORM} {config.words} {searched}".encode())
    for row in base.execute("SELECT file, sha FROM files WHERE problem IS NULL ORDER BY file"):
        digest.update("\0".join(row).encode())
    generation = directory / "passages" / digest.hexdigest()[:16]
    corpus = generation / "passages.jsonl"
    for left in (*directory.glob(".*.tmp"), *generation.glob(".*.tmp")):  # of a write that was killed
        left.unlink()
    if not corpus.exists():
        generation.mkdir(parents=True, exist_ok=True)
        write_jsonl(corpus, _passage_rows(base, config.words))
    for name, retriever in _with_kept(config.retrievers, directory, progress).items():
        retriever.build(str(corpus), generation / name)
    try:
        before = read_json(directory / RECORD).get("fingerprint")
    except DataError:
        before = None
    if before != generation.name:
        record = {"form": _FORM, "docs": _written(docs.resolve()), "fingerprint": generation.name}
        write_json(directory / RECORD, record)
        for old in (directory / "passages").iterdir():
            if old.name not in (generation.name, before):  # whoever reads the one before goes on
                shutil.rmtree(old, ignore_errors=True)
        base.executescript(_FORGET)
    return sum(1 for _ in _rows(corpus))


def _passage_rows(base: sqlite3.Connection, words: int) -> Iterator[dict[str, Any]]:
    """Rows of a corpus, with the places that passages have in their documents."""
    columns = "file, sha, text, title, blocks"
    statement = f"SELECT {columns} FROM files JOIN documents USING (sha) WHERE problem IS NULL ORDER BY file"
    for file, sha, text, title, blocks in base.execute(statement):
        document = Document(text, tuple(Block(*block) for block in json.loads(blocks)), title)
        for passage in cut_document(document, file, words):
            record = passage.record()
            row = {"id": passage.id, "text": record.text, "title": record.title, "file": file, "sha": sha}
            places = {"titles": passage.titles, "start": passage.start, "sentences": passage.sentences}
            yield {**row, **places, "passage": passage.text}


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    with open(file, encoding="utf-8") as stream:
        yield from map(json.loads, stream)


def _with_kept(
    retrievers: Mapping[str, RetrieverConfig], directory: Path, progress: bool = False
) -> dict[str, RetrieverConfig]:
    """The retrievers, whose encoder of one model keeps its vectors in the index."""
    made = dict(retrievers)
    for name, config in retrievers.items():
        encoder = getattr(config, "encoder", None)
        if type(encoder) is EncoderConfig and encoder.path is not None:
            kept = KeptEncoderConfig(**asdict(encoder), kept=str(directory / "documents.sqlite"))
            made[name] = replace(config, encoder=kept, progress=progress)  # type: ignore[type-var]
    return made
