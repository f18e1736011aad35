"""Builds a BM25 index shard by shard, with the statistics of the whole corpus.

bm25s weighs an index by its own statistics. So passages are counted first, a shard at a time; then the document
frequencies and the average length of all shards give every shard its weights, and each becomes an index that
bm25s opens. A shard holds for itself:

- `counts.safetensors`: the terms of each passage with their counts, lengths, ids and the order of the ids;
- `shard.json`, `terms.json`: where reading goes on after it, and the terms it saw first, for a build that is taken up;
- `bm25s/`: weights by term. Its columns are the terms in `present`, ascending.

A shard's directory, and `bm25s/` in it, appear by renaming, whole: a build that was killed goes on after the last one.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import atomic_directory, read_json, write_json
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.retrieval.arrays import open_arrays, save_arrays, string_arrays
from finegrained_rlhf.retrieval.bm25.postings import TermCounts, Weighting, count_terms, invert, join_counts
from finegrained_rlhf.retrieval.corpus import Corpus, CorpusScan, Place
from finegrained_rlhf.retrieval.record import IndexRecord, begin_index, known_scan
from finegrained_rlhf.runtime.console import ProgressBar, tracked

logger = logging.getLogger(__name__)

VOCABULARY = "vocabulary.safetensors"
COUNTS = "counts.safetensors"
BM25S = "bm25s"
MANY = 3_000_000
"""Passages from which on another engine is named: a search looks at the scores of every passage of a shard."""
_BLOCK = 10_000  # passages that are tokenized and counted together


class PassageTerms(Protocol):
    """Numbers the terms of passages while an index is built."""

    def __len__(self) -> int:
        """Terms there are so far."""
        ...

    def numbers(self, texts: Sequence[str]) -> list[list[int]]:
        """The numbers of the terms of each text."""
        ...

    def take_new(self) -> list[str]:
        """The terms that were numbered since the last call, in order; nothing where the vocabulary is fixed."""
        ...

    def restore(self, terms: Iterable[str]) -> None:
        """Number these terms as those of an earlier `take_new`."""
        ...

    def vocabulary(self) -> list[str]:
        """All terms, in the order of their numbers; nothing where the vocabulary is fixed."""
        ...


@dataclass(frozen=True)
class Bm25Constants:
    """What a BM25 index can be set to beside its terms.

    Attributes:
        k1: saturation of the counts, at least 0.
        b: strength of the length normalisation, 0 to 1.
        shard_size: passages a shard.
    """

    k1: float
    b: float
    shard_size: int

    def __post_init__(self) -> None:
        if self.k1 < 0:
            raise ConfigError(f"k1: expected at least 0, got {self.k1}")
        if not 0 <= self.b <= 1:
            raise ConfigError(f"b: expected 0 to 1, got {self.b}")
        if self.shard_size < 1:
            raise ConfigError(f"shard_size: expected at least 1, got {self.shard_size}")


def build_index(
    path: str | Path,
    directory: Path,
    describe: Callable[[CorpusScan], IndexRecord],
    terms: PassageTerms,
    constants: Bm25Constants,
    progress: bool = True,
) -> None:
    """Index a corpus, or go on where an earlier call was stopped.

    Memory: the vocabulary, 8 bytes a passage, and about 60 bytes a token of one shard.

    Args:
        path: of the corpus.
        directory: of the index.
        describe: the record of the index of a scanned corpus.
        terms: numbers the terms.
        constants: k1, b and the size of a shard.
        progress: show bars.

    Raises:
        DataError: a broken corpus.
        ConfigError: the directory holds another index.
    """
    directory = Path(directory)
    corpus = Corpus(path)
    record = describe(corpus.scan(known_scan(directory), progress))
    if record.corpus.passages > MANY:
        logger.warning(
            "%s: %s passages; past %s million Lucene (retriever=pyserini) or a server (retriever=opensearch) takes "
            "a fraction of the time and memory",
            corpus.path,
            f"{record.corpus.passages:,}",
            MANY // 10**6,
        )
    if not begin_index(directory, record):
        logger.info("%s: the index is already built", directory)
        return
    shards = directory / "shards"
    for left in (*shards.glob(".*"), *shards.glob("*/.*")):  # of a build that was killed
        shutil.rmtree(left, ignore_errors=True)
    with ProgressBar("counting", record.corpus.passages, "passages", progress) as bar:
        _count(corpus, shards, terms, constants.shard_size, bar)
    paths = shard_paths(directory)
    frequencies = np.zeros(len(terms), np.int64)
    passages, tokens = 0, 0
    for shard in paths:
        counts = open_arrays(shard / COUNTS)
        frequencies += np.bincount(counts["terms"], minlength=len(terms))
        passages, tokens = passages + len(counts["lengths"]), tokens + int(counts["lengths"].sum(dtype=np.int64))
    weighting = Weighting(passages, tokens / passages, frequencies, constants.k1, constants.b)
    for shard in tracked(paths, "weighing", len(paths), "shards", progress):
        if not (shard / BM25S).is_dir():
            _weigh(shard, weighting)
    save_arrays(directory / VOCABULARY, {**string_arrays(terms.vocabulary()), "frequencies": frequencies})
    statistics = {"passages": passages, "tokens": tokens, "terms": len(terms), "shards": len(paths)}
    replace(record, statistics=statistics, finished=True).write(directory)
    logger.info("%s: %d passages, %d tokens, %d terms; shards: %d", directory, passages, tokens, len(terms), len(paths))


def shard_paths(directory: Path) -> list[Path]:
    """The directories of an index's shards, in order."""
    return sorted((directory / "shards").glob("[0-9]*"))


def counts_of(arrays: dict[str, NDArray[Any]]) -> TermCounts:
    """The counts among a shard's arrays: `terms` and `counts` [m], `starts` [n + 1], `lengths` [n] (`TermCounts`)."""
    return TermCounts(arrays["terms"], arrays["counts"], arrays["starts"], arrays["lengths"])


def _count(corpus: Corpus, shards: Path, terms: PassageTerms, shard_size: int, bar: ProgressBar) -> None:
    """Count all shards that are not there yet."""
    place, number = Place(), 0
    while (path := shards / f"{number:05d}").is_dir():
        state = read_json(path / "shard.json")
        place, number = Place(**state["after"]), number + 1
        terms.restore(read_json(path / "terms.json"))
        bar.update(state["passages"])
    ids: list[str] = []
    parts: list[TermCounts] = []
    for block, last, after in _cut(corpus.read(place), shard_size):
        ids += [passage.id for passage in block]
        parts.append(count_terms(terms.numbers([passage.contents for passage in block])))
        bar.update(len(block))
        if last:
            _write_shard(shards / f"{number:05d}", ids, join_counts(parts), terms.take_new(), after)
            ids, parts, number = [], [], number + 1


def _cut(read: Iterator[tuple[Passage, Place]], shard_size: int) -> Iterator[tuple[list[Passage], bool, Place]]:
    """Blocks of passages; whether a block ends a shard; and the place after it."""
    block: list[Passage] = []
    in_shard, ended, after = 0, True, Place()
    for passage, after in read:
        block.append(passage)
        in_shard += 1
        ended = in_shard == shard_size
        if ended or len(block) == _BLOCK:
            yield block, ended, after
            block, in_shard = [], 0 if ended else in_shard
    if not ended:
        yield block, True, after


def _write_shard(path: Path, ids: Sequence[str], counts: TermCounts, new: Sequence[str], after: Place) -> None:
    ranks = np.empty(len(ids), np.int32)
    ranks[sorted(range(len(ids)), key=ids.__getitem__)] = np.arange(len(ids), dtype=np.int32)
    with atomic_directory(path) as directory:
        save_arrays(
            directory / COUNTS,
            {
                "terms": counts.terms,
                "counts": counts.counts,
                "starts": counts.starts,
                "lengths": counts.lengths,
                "present": np.unique(counts.terms),
                "ranks": ranks,
                **{f"ids.{name}": array for name, array in string_arrays(ids).items()},
            },
        )
        write_json(directory / "terms.json", list(new))
        write_json(directory / "shard.json", {"passages": len(ids), "after": asdict(after)})


def _weigh(path: Path, weighting: Weighting) -> None:
    """Write a shard's weights as an index of bm25s."""
    from bm25s import BM25

    columns = invert(counts_of(open_arrays(path / COUNTS)), weighting)
    index = BM25(k1=weighting.k1, b=weighting.b, method="lucene", backend="numpy")
    index.vocab_dict, index.nonoccurrence_array = {}, None
    index.scores = {
        "data": columns.weights,
        "indices": columns.rows,
        "indptr": columns.starts,
        "num_docs": len(open_arrays(path / COUNTS)["lengths"]),
    }
    with atomic_directory(path / BM25S) as directory:
        index.save(directory, show_progress=False)
