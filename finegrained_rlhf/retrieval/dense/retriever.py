"""Dense retrieval: a frozen encoder, cached passage vectors, and FAISS to search them.

The score of a passage is the dot product of the two vectors in fp32, always summed in one order, so that it does not
depend on what is scored beside it: equal texts of a shard tie exactly. Searches only propose candidates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import at_least
from finegrained_rlhf.retrieval.corpus import Corpus
from finegrained_rlhf.retrieval.dense.config import EncoderConfig, TextEncoder
from finegrained_rlhf.retrieval.dense.nearest import (
    CompressedSearch,
    FlatSearch,
    IvfPqConfig,
    Nearest,
    build_compressed,
    build_ivf_pq,
    enough_probes,
    factory_file,
    factory_index,
)
from finegrained_rlhf.retrieval.dense.vectors import VectorStore, encode_corpus
from finegrained_rlhf.retrieval.dense.workers import EncoderProcesses
from finegrained_rlhf.retrieval.protocol import Hit
from finegrained_rlhf.retrieval.record import IndexRecord, begin_index, config_of, known_scan, open_record

_KIND = "dense"
_MARGIN = 8  # candidates beyond k, so that ties at the end are seen
_ASKED = 200  # passages that are queries where probes are measured
_NOISE = 1e-5  # of the product of the lengths; two ways of summing in fp32 differ by less


@dataclass(frozen=True)
class DenseConfig(Settings):
    """A dense index.

    Attributes:
        encoder: what gives vectors; frozen. It may be given as a mapping.
        index: `flat` searches all vectors; `ivf_pq` a compressed index of them. Both share the cached vectors.
        ivf_pq: settings of the latter; may be given as a mapping.
        factory: FAISS's factory string of another compressed index, instead of `index` and of `ivf_pq.lists`, `.codes`
            and `.bits`: `OPQ64,IVF4096,PQ64np`, `HNSW32`, `SQ8`, …. `ivf_pq.probes`, `.train` and `.refine` are its
            settings as well.
        storage: of the cached vectors, `float32` or `float16` (half the disk, scores to three digits).
        shard_size: passages a file; what a killed build loses at most.
        query_batch: queries that are searched together.
        progress: show bars while building.
    """

    encoder: EncoderConfig
    index: Literal["flat", "ivf_pq"] = "flat"
    ivf_pq: IvfPqConfig = field(default_factory=IvfPqConfig)
    factory: str | None = None
    storage: Literal["float32", "float16"] = "float32"
    shard_size: Annotated[int, at_least(1)] = 50_000
    query_batch: Annotated[int, at_least(1)] = 256
    progress: bool = True

    def __post_init__(self) -> None:
        for name, made in (("encoder", EncoderConfig), ("ivf_pq", IvfPqConfig)):
            if isinstance(given := getattr(self, name), Mapping):  # as a record of an index keeps it
                object.__setattr__(self, name, made(**given))
        fixed = (self.index, self.ivf_pq.lists, self.ivf_pq.codes, self.ivf_pq.bits)
        if self.factory is not None and fixed != ("flat", None, IvfPqConfig.codes, IvfPqConfig.bits):
            raise ConfigError("factory: stands for index, ivf_pq.lists, .codes and .bits; leave those as they are")

    def build(self, corpus: str, directory: Path) -> None:
        """Encode a corpus and index its vectors; goes on where it was stopped. No passage is encoded twice.

        Raises:
            DataError: a broken or empty corpus.
            ConfigError: the directory holds the vectors of another corpus, encoder or settings; or settings that do
                not fit the corpus.
            ModelError: no readable encoder.
        """
        encoder = self.encoder.load()
        texts = Corpus(corpus)
        scan = texts.scan(known_scan(directory), self.progress)
        if self.factory is not None:  # before hours of encoding
            factory_index(self.factory, encoder.dimension, scan.passages)
        record = IndexRecord(_KIND, self._settings(encoder), scan, config=asdict(self))
        if begin_index(directory, record):
            shards = self._encode(texts, encoder, directory, scan.passages)
            statistics = {"shards": shards, "passages": scan.passages, "dimension": encoder.dimension}
            replace(record, statistics=statistics, finished=True).write(directory)
        store = self._store(directory, encoder)
        path = self._compressed(directory, len(store))
        if path is not None and not path.is_file():
            if self.factory is None:
                build_ivf_pq(store, self.ivf_pq, path, self.progress)
            else:
                build_compressed(store, self.factory, self.ivf_pq.train, path, self.progress)
        chosen = self
        if path is not None and self.ivf_pq.goal is not None and self.factory is None:
            asked = store.gather(np.linspace(0, len(store) - 1, min(_ASKED, len(store))).astype(np.int64))
            probes, _ = enough_probes(store, path, self.ivf_pq, asked)
            chosen = replace(self, ivf_pq=replace(self.ivf_pq, probes=probes))
        finished = open_record(directory, _KIND, record.settings)
        replace(finished, config=asdict(chosen)).write(directory)  # how it is opened follows the latest build

    def open(self, directory: Path) -> DenseRetriever:
        """The retriever over an index that was built with these settings.

        Raises:
            DataError: there is no index, or it is damaged or not finished.
            ConfigError: it was built with another encoder or other settings.
            ModelError: no readable encoder.
        """
        encoder = self.encoder.load()
        store = self._store(directory, encoder)
        search: Nearest
        if (path := self._compressed(directory, len(store))) is None:
            search = FlatSearch(store)
        else:
            built = config_of(directory) if self.ivf_pq.goal is not None else self
            chosen = built.ivf_pq if isinstance(built, DenseConfig) else self.ivf_pq
            search = CompressedSearch(store, path, chosen.probes, self.ivf_pq.refine)
        return DenseRetriever(encoder, store, search, self.query_batch)

    def _encode(self, texts: Corpus, encoder: TextEncoder, directory: Path, passages: int) -> int:
        """Write the shards that are not there yet, in several processes if there should be; returns their number."""
        encode = partial(
            encode_corpus,
            texts,
            encoder,
            directory,
            passages=passages,
            shard_size=self.shard_size,
            dtype=self.storage,
            progress=self.progress,
        )
        if self.encoder.processes == 1:
            return encode()
        with EncoderProcesses(self.encoder) as workers:
            return encode(encode_pieces=workers.encode_pieces)

    def _compressed(self, directory: Path, passages: int) -> Path | None:
        """The file of the compressed index; None where all vectors are searched."""
        if self.factory is not None:
            return factory_file(directory, self.factory, self.ivf_pq.train)
        return self.ivf_pq.file(directory, passages) if self.index == "ivf_pq" else None

    def _settings(self, encoder: TextEncoder) -> dict[str, Any]:
        """What the cached vectors depend on. The size of shards is among it, because a build goes on by shards."""
        return {**encoder.identity, "storage": self.storage, "shard_size": self.shard_size}

    def _store(self, directory: Path, encoder: TextEncoder) -> VectorStore:
        record = open_record(directory, _KIND, self._settings(encoder))
        return VectorStore(directory, int(record.statistics["shards"]), encoder.dimension)


def dot_products(queries: NDArray[np.float32], passages: NDArray[np.float32]) -> NDArray[np.float32]:
    """Every dot product, each summed in the same order whatever else is computed (a matrix product is not).

    Args:
        queries: fp32 [Q, D].
        passages: fp32 [P, D].

    Returns:
        fp32 [Q, P].
    """
    assert queries.ndim == passages.ndim == 2 and queries.dtype == passages.dtype == np.float32
    rows = np.ascontiguousarray(passages)
    products = np.empty((len(queries), len(rows)), dtype=np.float32)
    for number, query in enumerate(np.ascontiguousarray(queries)):
        products[number] = (rows * query).sum(axis=1)  # along memory: the order of the sum depends on D alone
    return products


class DenseRetriever:
    """Scores and searches by dot products of vectors; a retriever as in `protocol`.

    Args:
        encoder: of the queries.
        store: vectors of the passages.
        search: proposes candidates.
        query_batch: queries that are searched together.
    """

    def __init__(self, encoder: TextEncoder, store: VectorStore, search: Nearest, query_batch: int = 256) -> None:
        self._encoder, self._store, self._search, self._query_batch = encoder, store, search, query_batch

    def score_pool(self, queries: Sequence[str], ids: Sequence[str]) -> NDArray[np.float32]:
        """Dot products of every query with every passage of a pool, fp32 [Q, P]; cached vectors are gathered.

        Raises:
            DataError: an id is not in the corpus.
        """
        columns = {id: column for column, id in enumerate(dict.fromkeys(ids))}
        passages = self._store.gather(self._store.rows(list(columns)))
        vectors = self._encoder.encode(queries, "query")
        return dot_products(vectors, passages)[:, [columns[id] for id in ids]]

    def missing(self, ids: Sequence[str]) -> list[str]:
        """Ids that are not in the corpus (see `Retriever`)."""
        different = list(dict.fromkeys(ids))
        return [id for id, row in zip(different, self._store.find(different).tolist(), strict=True) if row < 0]

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """The k best passages of each query among the candidates; equal scores are ordered by id, descending.

        Raises:
            ConfigError: k is less than 1.
        """
        if k < 1:
            raise ConfigError(f"k: expected at least 1 hit a query, got {k}")
        vectors = self._encoder.encode(queries, "query")
        results: list[list[Hit]] = []
        for start in range(0, len(vectors), self._query_batch):
            results += self._search_batch(vectors[start : start + self._query_batch], k)
        return results

    def _search_batch(self, vectors: NDArray[np.float32], k: int) -> list[list[Hit]]:
        n = min(k + _MARGIN, len(self._store))
        results: list[list[Hit]] = [[] for _ in vectors]
        open_queries = np.arange(len(vectors))
        while len(open_queries):
            products, rows = self._search.candidates(vectors[open_queries], n)
            undecided = []
            for query, of_query, products_of_query in zip(open_queries, rows, products, strict=True):
                hits, noise = self._ranked(vectors[query], of_query[of_query >= 0])
                results[query] = hits[:k]
                may_tie = len(hits) >= k and float(products_of_query[-1]) >= hits[k - 1].score - noise
                if self._search.exact and n < len(self._store) and may_tie:
                    undecided.append(query)  # passages that tie with the k-th may not be among the candidates
            open_queries = np.array(undecided, dtype=np.int64)
            n = min(4 * n, len(self._store))
        return results

    def _ranked(self, vector: NDArray[np.float32], rows: NDArray[np.int64]) -> tuple[list[Hit], float]:
        """Hits of rows in their order, and by how much other ways of summing might differ from their scores."""
        passages = self._store.gather(rows)
        scores = dot_products(vector[None], passages)[0].tolist()
        noise = _NOISE * float(np.linalg.norm(vector)) * float(np.linalg.norm(passages, axis=1).max(initial=0.0))
        hits = [Hit(self._store.id(row), score) for row, score in zip(rows.tolist(), scores, strict=True)]
        return sorted(hits, key=lambda hit: (hit.score, hit.id), reverse=True), noise
