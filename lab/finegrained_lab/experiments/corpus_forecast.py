"""What the indexes of a corpus will take of disk, memory and time, before the first of them is made."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.core.markers import CorpusPath, OutputFile, at_least
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.retrieval.corpus import Corpus, Place, is_compressed
from finegrained_rlhf.retrieval.dense.config import EncoderConfig

logger = logging.getLogger(__name__)

SAMPLED = 20_000
"""Passages that are read of a corpus, evenly from the beginnings of its files."""
ENCODED = 32
"""Passages that are encoded to see how long one takes."""
STORE_BYTES, READ_SECONDS = 16.0, 3.9e-8
"""A passage, and a byte of the corpus: `store` of benchmarks/results/rehearsal_1m.json."""
WORDS, BM25_BYTES, BM25_SECONDS = (12.0, 378.0), (229.5, 4360.4), (44.8e-6, 483e-6)
"""Of passages of so many words: what one takes of disk and of a processor, in benchmarks/results/retrieval.json and
retrieval_378_words.json."""
SHARD = 500_000
SHARD_TOKENS, SHARD_MEMORY = (6.0e6, 37.8e6), (0.708e9, 2.490e9)
"""Words of a shard, and the most memory of that build: the same two files."""
ID_BYTES = 20.0
"""Of a passage's id in a dense index, beside its own length (docs/retrieval.md)."""
ENCODER_MEMORY = 0.985e9
"""Of a process that encodes with a small encoder: `dense` of rehearsal_1m.json."""


@dataclass(frozen=True)
class Size:
    """How large a corpus is.

    Attributes:
        passages: their number; exact where all were read.
        words: of a passage, on average.
        id_bytes: of its id, on average.
        bytes: of all files, unpacked.
        sample: some of the passages.
    """

    passages: int
    words: float
    id_bytes: float
    bytes: int
    sample: tuple[Passage, ...]


def size_of(corpus: Corpus, most: int = SAMPLED) -> Size:
    """The size of a corpus, by the first passages of each file; compressed files are read whole.

    Raises:
        DataError: a broken line, or no passage.
    """
    each = max(1, most // len(corpus.parts))
    passages, words, ids, read, whole = 0.0, 0, 0, 0, 0
    sample: list[Passage] = []
    for number, part in enumerate(corpus.parts):
        here, offset = 0, 0
        for passage, after in islice(corpus.read(Place(number)), None if is_compressed(part) else each):
            if after.part != number:  # the next file
                break
            here, offset = here + 1, after.offset
            words, ids = words + len(passage.contents.split()), ids + len(passage.id.encode())
            if len(sample) < ENCODED and (here == 1 or number == len(corpus.parts) - 1):
                sample.append(passage)
        size = offset if is_compressed(part) else part.stat().st_size
        passages += here * size / offset if here == each else here
        read, whole = read + here, whole + size
    if not read:
        raise DataError("holds no passage, expected at least one", file=corpus.path)
    return Size(round(passages), words / read, ids / read, whole, tuple(sample))


def between(x: float, places: tuple[float, float], values: tuple[float, float]) -> float:
    """What lies at x on the line through two measured values."""
    (low, high), (first, last) = places, values
    return first + (x - low) * (last - first) / (high - low)


@dataclass(frozen=True, kw_only=True)
class ForecastCorpus(Settings):
    """A job: prints what the store and the indexes of a corpus will take, and warns where there is not so much.

    Training and search are not in it. A dense index is forecast by encoding a few passages.

    Attributes:
        corpus: file or directory.
        output: JSON file of the forecast; the free disk is that of its file system.
        store: whether a passage store is made.
        sparse: what is searched by words; an index is made here where it is `bm25`.
        sparse_indexes: how many BM25 indexes are made beside that one (BM25-light counts as one).
        dense: keys of the encoder, `retriever.encoder.…`, as of `finegrained build-index`; none: no dense index.
        dense_keys: further keys of the dense indexes.
        dense_indexes: how many of them are made.
    """

    corpus: CorpusPath
    output: OutputFile
    store: bool = False
    sparse: str = "bm25"
    sparse_indexes: Annotated[int, at_least(0)] = 0
    dense: Mapping[str, Any]
    dense_keys: Mapping[str, Any]
    dense_indexes: Annotated[int, at_least(0)] = 1

    def run(self) -> dict[str, Any]:
        """Measure, print, write.

        Returns:
            `passages`, `words` of one, `disk_bytes`, `memory_bytes` (the most of a step) and `seconds`, and the same by
            step.

        Raises:
            DataError: a broken line of the corpus, or no passage.
            ModelError: no readable encoder.
        """
        size = size_of(Corpus(self.corpus))
        steps = {"store": _store(size)} if self.store else {}
        indexes = (self.sparse == "bm25") + self.sparse_indexes
        if indexes:
            steps["bm25"] = _times(_bm25(size), indexes)
        if self.dense and self.dense_indexes:
            steps["dense"] = _times(self._dense(size), self.dense_indexes)
        found: dict[str, Any] = {
            "passages": size.passages,
            "words": size.words,
            "disk_bytes": sum(step["disk_bytes"] for step in steps.values()),
            "memory_bytes": max((step["memory_bytes"] for step in steps.values()), default=0.0),
            "seconds": sum(step["seconds"] for step in steps.values()),
            "steps": steps,
        }
        write_json(self.output, found)
        print(
            f"about {size.passages:,} passages of {size.words:.0f} words: their indexes take "
            f"{_gb(found['disk_bytes'])} of disk, {_gb(found['memory_bytes'])} of memory and "
            f"{found['seconds'] / 3600:.1f} hours (scaled up from benchmarks on two cores) -> {self.output}"
        )
        if short := too_little(found, free(Path(self.output))):
            logger.warning("%s: %s", self.corpus, short)
        return found

    def _dense(self, size: Size) -> dict[str, float]:
        """One dense index; the encoder says how long a passage takes it."""
        keys = {name.removeprefix("retriever."): value for name, value in {**self.dense, **self.dense_keys}.items()}
        inside = "encoder."
        config = EncoderConfig(
            **{name.removeprefix(inside): value for name, value in keys.items() if name.startswith(inside)}
        )
        encoder = config.load()
        parts = [encoder.parts(passage) for passage in size.sample]
        encoder.encode_parts(parts[:1])  # what is made once
        begun = time.perf_counter()
        encoder.encode_parts(parts)
        seconds = (time.perf_counter() - begun) / len(parts) / config.processes
        number = 2 if keys.get("storage") == "float16" else 4  # bytes of a number
        vector = number * encoder.dimension + ID_BYTES + size.id_bytes
        codes = keys.get("ivf_pq.codes", 64) + 8 if keys.get("index") == "ivf_pq" else 0
        return {
            "disk_bytes": size.passages * (vector + codes),
            "memory_bytes": config.processes * ENCODER_MEMORY + 8.0 * size.passages,
            "seconds": size.passages * seconds + size.bytes * READ_SECONDS,
        }


def _store(size: Size) -> dict[str, float]:
    disk, seconds = size.passages * STORE_BYTES, size.bytes * READ_SECONDS
    return {"disk_bytes": disk, "memory_bytes": 40.0 * size.passages, "seconds": seconds}


def _bm25(size: Size) -> dict[str, float]:
    tokens = min(size.passages, SHARD) * size.words
    return {
        "disk_bytes": size.passages * between(size.words, WORDS, BM25_BYTES),
        "memory_bytes": between(tokens, SHARD_TOKENS, SHARD_MEMORY) + 8.0 * size.passages,
        "seconds": size.passages * between(size.words, WORDS, BM25_SECONDS),
    }


def _times(one: Mapping[str, float], number: int) -> dict[str, float]:
    """So many of a step, one after the other."""
    return {name: value if name == "memory_bytes" else number * value for name, value in one.items()}


def free(path: Path) -> dict[str, int]:
    """Bytes of disk where a file goes and of memory that nobody uses."""
    import psutil

    place = next(folder for folder in path.absolute().parents if folder.is_dir())
    return {"disk": shutil.disk_usage(place).free, "memory": int(psutil.virtual_memory().available)}


def too_little(found: Mapping[str, Any], there: Mapping[str, int]) -> str | None:
    """What there is too little of, in a line; None where all fits."""
    short = [
        f"{_gb(found[f'{what}_bytes'])} of {what}, and {_gb(bytes)} are free"
        for what, bytes in there.items()
        if found[f"{what}_bytes"] > bytes
    ]
    return f"its indexes will take about {'; about '.join(short)}" if short else None


def _gb(size: float) -> str:
    return f"{size / 1e9:,.1f} GB"
