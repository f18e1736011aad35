"""What a compressed index loses: the hits of IVF-PQ against those of an exhaustive search, its bytes and its time.

Examples:
    python benchmarks/ivf_pq.py out=benchmarks/results/ivf_pq_200k.json
    python benchmarks/ivf_pq.py vectors=1000000 queries=1000 out=ivf_pq_1m.json
    python benchmarks/ivf_pq.py vectors=3000 dimension=16 codes=4 queries=50 out=small.json

Knows the command line, generated vectors and what is measured. Builds and searches are the project's own
(`FlatSearch`, `build_ivf_pq`, `CompressedSearch` behind a `DenseRetriever`), so that times and order are what a user
gets: candidates of either side are scored with their exact vectors.

Vectors of length 1 lie around centres, 100 around each. Centres and what is added to them have a spectrum that falls as
1/√j, as those of sentence encoders fall, in axes that are turned at random, so that no code has an axis to itself. A
query is a vector of the corpus, its *gold* one, with noise.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from numpy.typing import NDArray

from benchmarks.command import read_arguments, run_main
from benchmarks.retrieval import timed
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.retrieval.corpus import Place
from finegrained_rlhf.retrieval.dense.config import TextKind
from finegrained_rlhf.retrieval.dense.nearest import CompressedSearch, FlatSearch, IvfPqConfig, Nearest, build_ivf_pq
from finegrained_rlhf.retrieval.dense.retriever import DenseRetriever
from finegrained_rlhf.retrieval.dense.vectors import VectorStore, save_shard
from finegrained_rlhf.runtime.directory.provenance import nameless_hardware

DEFAULTS = {
    "vectors": "200000",
    "dimension": "128",
    "lists": "",  # "" leaves it to the project: the power of two next to 4√n
    "probes": "8,32,128",
    "codes": "16",  # as 96 of 768: eight numbers a code
    "refine": "1,4",
    "queries": "300",
    "k": "1,20,100",
}
A_CENTRE, SHARD = 100, 50_000
SPREAD, NOISE = 0.6, 0.8  # lengths of what is added to a centre, and to a vector for its query; a centre has 1

Lists = list[list[int]]


class Given:
    """Stands for an encoder: query "i" is the i-th of given vectors, fp32 [Q, dimension]."""

    identity: dict[str, Any] = {}

    def __init__(self, vectors: NDArray[np.float32]) -> None:
        self.vectors, self.dimension, self.batch_size = vectors, vectors.shape[1], 256

    def encode(self, texts: Sequence[str], kind: TextKind) -> NDArray[np.float32]:
        """fp32 [N, dimension]."""
        return self.vectors[[int(text) for text in texts]]

    def parts(self, passage: Passage) -> tuple[str, ...]:
        """Nothing is encoded here."""
        return (passage.text,)

    def encode_parts(self, passages: Sequence[tuple[str, ...]]) -> NDArray[np.float32]:
        """fp32 [N, dimension]."""
        return self.encode([text for (text,) in passages], "passage")


def generate(
    directory: Path, count: int, dimension: int, queries: int, seed: int = 0
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Write the shards of a corpus of vectors.

    Returns:
        fp32 [Q, dimension], the queries, and int64 [Q], the row of each one's gold vector.
    """
    rng = np.random.default_rng(seed)
    turned = np.linalg.qr(rng.normal(size=(dimension, dimension)))[0]
    spectrum = np.arange(1, dimension + 1) ** -0.5
    axes = ((spectrum / np.linalg.norm(spectrum))[:, None] * turned).astype(np.float32)

    def drawn(n: int, length: float) -> NDArray[np.float32]:
        found: NDArray[np.float32] = rng.standard_normal((n, dimension), dtype=np.float32) @ axes
        return found * np.float32(length)

    def of_length_1(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        found: NDArray[np.float32] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return found

    centres = drawn(max(1, count // A_CENTRE), 1.0)
    gold = np.sort(rng.choice(count, size=queries, replace=queries > count))
    asked = np.empty((queries, dimension), dtype=np.float32)
    for number, start in enumerate(range(0, count, SHARD)):
        n = min(SHARD, count - start)
        vectors = of_length_1(centres[rng.integers(len(centres), size=n)] + drawn(n, SPREAD))
        save_shard(directory, number, vectors, [f"passage_{i}" for i in range(start, start + n)], Place())
        here = (gold >= start) & (gold < start + n)
        asked[here] = vectors[gold[here] - start]
    return of_length_1(asked + drawn(queries, NOISE)), gold


def searched(store: VectorStore, search: Nearest, asked: NDArray[np.float32], k: int) -> tuple[Lists, dict[str, float]]:
    """The rows that a retriever finds for each query, and its milliseconds a query, searched together."""
    retriever = DenseRetriever(Given(asked), store, search)
    texts = [str(i) for i in range(len(asked))]
    start, processor = time.perf_counter(), time.process_time()
    hits = retriever.search(texts, k)
    times = (time.perf_counter() - start, time.process_time() - processor)
    rows = [[int(hit.id.rpartition("_")[2]) for hit in of_query] for of_query in hits]
    return rows, {"ms": 1e3 * times[0] / len(asked), "processor_ms": 1e3 * times[1] / len(asked)}


def hits_at(found: Lists, gold: Sequence[int], ks: Sequence[int]) -> dict[str, float]:
    """Share of the queries whose gold row is among the first k."""
    return {str(k): float(np.mean([row in of[:k] for of, row in zip(found, gold, strict=True)])) for k in ks}


def agreement(found: Lists, exact: Lists, ks: Sequence[int]) -> dict[str, float]:
    """Mean share of the first k of the exact list that is among the first k."""
    pairs = list(zip(found, exact, strict=True))
    return {str(k): float(np.mean([len({*a[:k]} & {*b[:k]}) / len(b[:k]) for a, b in pairs])) for k in ks}


def measure(given: dict[str, str], directory: Path) -> dict[str, Any]:
    """Build both indexes in a directory and search them in every way that is asked for."""
    count, dimension, queries, codes = (
        _numbers(given, name)[0] for name in ("vectors", "dimension", "queries", "codes")
    )
    ks, probes, refines = (_numbers(given, name) for name in ("k", "probes", "refine"))
    lists = _numbers(given, "lists")[0] if given["lists"] else None
    asked, gold = generate(directory, count, dimension, queries)
    store = VectorStore(directory, -(-count // SHARD), dimension)
    config = IvfPqConfig(lists=lists, codes=codes)
    path = config.file(directory, count)
    wall, processor = timed(lambda: build_ivf_pq(store, config, path, progress=False))
    on_disk = sum(file.stat().st_size for file in directory.glob("vectors-*"))
    exact, times = searched(store, FlatSearch(store), asked, max(ks))
    rows = []
    for p in probes:
        for refine in refines:
            search = CompressedSearch(store, path, p, refine)
            found, taken = searched(store, search, asked, max(ks))
            nearest = hits_at(found, [of[0] for of in exact], ks)
            hit, agreed = hits_at(found, gold.tolist(), ks), agreement(found, exact, ks)
            rows.append({"probes": p, "refine": refine, "hit": hit, "nearest": nearest, "agreement": agreed} | taken)
    return {
        "vectors": count,
        "dimension": dimension,
        "queries": queries,
        "lists": config.lists_of(count),
        "codes": codes,
        "build": {"seconds": wall, "processor_seconds": processor},
        "bytes_a_vector": {
            "ivf_pq": path.stat().st_size / count,
            "float32": 4.0 * dimension,
            "id": on_disk / count - 4 * dimension,
        },
        "flat": {"hit": hits_at(exact, gold.tolist(), ks)} | times,
        "ivf_pq": rows,
    }


def main(arguments: Sequence[str]) -> dict[str, Any]:
    """Measure, print, write."""
    given = DEFAULTS | read_arguments(arguments, ("out", *DEFAULTS))
    with tempfile.TemporaryDirectory() as folder:
        result = measure(given, Path(folder))
    result["hardware"] = nameless_hardware()
    print(
        f"{result['vectors']:,} vectors of {result['dimension']}; IVF{result['lists']},PQ{result['codes']}: "
        f"{result['bytes_a_vector']['ivf_pq']:.1f} bytes a vector, built in {result['build']['seconds']:.1f} s"
    )
    print(f"flat                      {_shown(result['flat'])}")
    for row in result["ivf_pq"]:
        print(f"probes {row['probes']:>5}, refine {row['refine']:>3}  {_shown(row)}")
    if "out" in given:
        write_json(given["out"], result)
    return result


def _shown(row: dict[str, Any]) -> str:
    shares = [
        f"{label} " + " / ".join(f"{value:.3f}" for value in row[name].values())
        for name, label in (("hit", "HIT of gold"), ("nearest", "HIT of the nearest"), ("agreement", "agreement"))
        if name in row
    ]
    return f"{'; '.join(shares)}; {row['ms']:.2f} ms a query"


def _numbers(given: dict[str, str], name: str) -> list[int]:
    try:
        found = [int(word) for word in given[name].split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise ConfigError(f"{name}: expected whole numbers from 1 on, got {given[name]!r}")
    return found


if __name__ == "__main__":
    run_main(main)
