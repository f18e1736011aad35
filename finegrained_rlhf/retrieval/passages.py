"""Passages by their ids, at random, of corpora that do not fit into memory.

A store has two mapped arrays of 8 bytes a passage: the sorted hashes of the ids, and the places in that order. Texts
stay in the corpus; ids that share a hash are told apart by reading both.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from finegrained_rlhf.core.checks import as_object, get_field
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import atomic_directory, read_json, write_json
from finegrained_rlhf.core.markers import CorpusPath, OutputDirectory
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.retrieval.corpus import Corpus, CorpusScan, Place, id_hash
from finegrained_rlhf.runtime.console import ProgressBar

_FORMAT = "finegrained-passage-store/1"
_RECORD = "store.json"
_OFFSET_BITS = 48
_OFFSETS = (1 << _OFFSET_BITS) - 1


class PassageStore:
    """Passages of a corpus by id: a look-up reads one line.

    Args:
        directory: that `build_store` wrote.
        corpus: that it was built of; names, sizes and times of its files must be the same, or their bytes.

    Raises:
        DataError: no store, a damaged one, or one of another corpus; or the corpus is compressed.
    """

    def __init__(self, directory: str | Path, corpus: Corpus) -> None:
        _require_plain(corpus)
        self.directory, self.corpus = Path(directory), corpus
        self.scan = _read_record(self.directory)
        self._require_same(corpus)
        self._hashes = _mapped(self.directory, "hashes.npy", self.scan)
        self._places = _mapped(self.directory, "places.npy", self.scan)

    def __len__(self) -> int:
        return self.scan.passages

    @property
    def fingerprint(self) -> str:
        """That of the corpus, as indexes of it record it."""
        return self.scan.fingerprint

    def __contains__(self, id: object) -> bool:
        return isinstance(id, str) and self._lookup(id) is not None

    def find(self, ids: Iterable[str]) -> dict[str, Passage]:
        """The passages with these ids, in their order.

        Raises:
            DataError: an id is not in the corpus, or a line of it cannot be read any more.
        """
        passages = {}
        for id in ids:
            passage = self._lookup(id)
            if passage is None:
                raise DataError(f"no passage with the id {id!r}", file=self.corpus.path)
            passages[id] = passage
        return passages

    def _lookup(self, id: str) -> Passage | None:
        return next((passage for passage in self._same_hash(id) if passage.id == id), None)

    def _same_hash(self, id: str) -> Iterator[Passage]:
        """The passages whose ids have the same hash: as a rule one or none."""
        value = np.uint64(id_hash(id))
        row = int(np.searchsorted(self._hashes, value))
        while row < len(self._hashes) and self._hashes[row] == value:
            packed = int(self._places[row])
            yield self._read(packed >> _OFFSET_BITS, packed & _OFFSETS)
            row += 1

    def _read(self, part: int, offset: int) -> Passage:
        start = Place(part, offset, 2 if offset else 1)  # the first line may be a header, no other one
        try:
            return next(passage for passage, _ in self.corpus.read(start))
        except (StopIteration, DataError):
            raise DataError(
                f"holds no passage at byte {offset} any more: the corpus has changed since the store was built",
                file=self.corpus.parts[part],
            ) from None

    def _require_same(self, corpus: Corpus) -> None:
        scan = corpus.scan(self.scan, progress=False)
        if scan.fingerprint != self.scan.fingerprint:
            raise DataError(f"is a store of another corpus than {corpus.path}; build it anew", file=self.directory)


@dataclass(frozen=True)
class BuildStore(Settings):
    """Write the store of a corpus; a step of experiments.

    Attributes:
        corpus: file or directory.
        output_dir: directory of the store; must not be there.
    """

    corpus: CorpusPath
    output_dir: OutputDirectory

    def run(self) -> int:
        """Build, print one line; returns how many passages there are. Raises what `build_store` does."""
        store = build_store(Corpus(self.corpus), self.output_dir)
        print(f"{len(store):,} passages -> {self.output_dir}")
        return len(store)


def build_store(corpus: Corpus, directory: str | Path, progress: bool = True) -> PassageStore:
    """Read a corpus once and write its store, whole or not at all. Needs some 40 bytes a passage of memory.

    Args:
        corpus: of which an id occurs once.
        directory: of the store; must not be there.
        progress: show a bar.

    Raises:
        DataError: the corpus is damaged, empty, compressed, or has an id twice, or more or larger files than a place
            can name.
    """
    _require_plain(corpus)
    directory = Path(directory)
    if directory.exists():
        raise DataError("is there already: remove it, or name another one", file=directory)
    if len(corpus.parts) >> (64 - _OFFSET_BITS) or any(p.stat().st_size > _OFFSETS for p in corpus.parts):
        raise DataError("expected at most 65,535 files of at most 256 TiB", file=corpus.path)
    scan = corpus.scan(progress=progress)
    hashes, places, start = array("Q"), array("Q"), Place()
    with ProgressBar("placing", scan.passages, "passages", progress) as bar:
        for passage, after in corpus.read():
            if after.part != start.part:
                start = Place(after.part)
            hashes.append(id_hash(passage.id))
            places.append(start.part << _OFFSET_BITS | start.offset)
            start = after
            bar.update()
    keys = np.frombuffer(hashes, dtype=np.uint64)
    order = np.argsort(keys, kind="stable")
    with atomic_directory(directory) as temporary:
        np.save(temporary / "hashes.npy", keys[order])
        np.save(temporary / "places.npy", np.frombuffer(places, dtype=np.uint64)[order])
        write_json(temporary / _RECORD, {"format": _FORMAT, "scan": scan.to_json()})
    return PassageStore(directory, corpus)


def is_store(path: str | Path) -> bool:
    """Whether a path is the directory of a store."""
    return (Path(path) / _RECORD).is_file()


def ids_in_store(directory: str | Path, ids: Iterable[str]) -> set[str]:
    """Those of some ids that a store holds, without its corpus.

    Hashes of 64 bits say so: of 10⁸ passages, an id that is not there passes once in 10¹¹.

    Raises:
        DataError: no store, or a damaged one.
    """
    hashes = _mapped(Path(directory), "hashes.npy", _read_record(Path(directory)))
    distinct = list(dict.fromkeys(ids))
    wanted = np.array([id_hash(id) for id in distinct], dtype=np.uint64)
    rows = np.searchsorted(hashes, wanted)
    return {
        id for id, row, value in zip(distinct, rows, wanted, strict=True) if row < len(hashes) and hashes[row] == value
    }


def _mapped(directory: Path, name: str, scan: CorpusScan) -> NDArray[np.uint64]:
    try:
        column: NDArray[np.uint64] = np.load(directory / name, mmap_mode="r")
    except (OSError, ValueError) as error:
        raise DataError(f"the store is damaged ({error})", file=directory) from None
    if len(column) != scan.passages:
        raise DataError(f"the store is damaged: expected {scan.passages} passages", file=directory)
    return column


def _require_plain(corpus: Corpus) -> None:
    if corpus.compressed:
        problem = "is compressed, so that a look-up would unpack all that is before a passage; unpack it (gunzip) first"
        raise DataError(problem, file=corpus.compressed[0])


def _read_record(directory: Path) -> CorpusScan:
    path = directory / _RECORD
    row = read_json(path)
    if not isinstance(row, dict) or row.get("format") != _FORMAT:
        raise DataError(f"expected a passage store of format {_FORMAT!r}", file=path)
    try:
        return CorpusScan.from_json(dict(as_object(get_field(row, "scan"), "scan")))
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"not the record of a passage store ({error})", file=path) from None
