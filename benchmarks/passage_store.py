"""The store of passages: how long it takes to build, what a passage takes in memory, how long a look-up takes.

Examples:
    python benchmarks/passage_store.py out=benchmarks/results/passage_store.json
    python benchmarks/passage_store.py passages=20000 out=small.json

Knows the command line and what is measured; the corpus is in `retrieval_workload.py`. Building and looking up run in
processes of their own, whose resident memory (mapped files included) is read from the system. The other side reads the
corpus from its beginning until it has the passages (`Corpus.find`), as a system without a store must.
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

from benchmarks.command import read_arguments, run_main
from benchmarks.retrieval import apart, status, timed
from benchmarks.retrieval_workload import write_corpus
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.retrieval.corpus import Corpus
from finegrained_rlhf.retrieval.passages import PassageStore, build_store
from finegrained_rlhf.runtime.directory.provenance import nameless_hardware

LOOKED_UP, FOR_ONE_TURN = 10_000, 50
KEYS = ("out", "passages")


def build(corpus: str, directory: str) -> dict[str, Any]:
    """Build a store."""
    wall, processor = timed(lambda: build_store(Corpus(corpus), directory, progress=False))
    return {"seconds": wall, "processor_seconds": processor, "peak_bytes": status("VmHWM")}


def look_up(corpus: str, directory: str, count: int) -> dict[str, Any]:
    """Look random passages up, one at a time."""
    before, own_before = status("VmRSS"), status("RssAnon")
    opened, _ = timed(lambda: PassageStore(directory, Corpus(corpus)))
    store = PassageStore(directory, Corpus(corpus))
    ids = [f"passage_{i}" for i in np.random.default_rng(1).integers(count, size=LOOKED_UP).tolist()]
    seconds = []
    for id in ids:
        start = time.perf_counter()
        found = store.find([id])
        seconds.append(time.perf_counter() - start)
        assert found[id].id == id
    arrays = [Path(directory) / name for name in ("hashes.npy", "places.npy")]
    return {
        "open_seconds": opened,
        "looked_up": LOOKED_UP,
        "median_us": 1e6 * float(np.median(seconds)),
        "p95_us": 1e6 * float(np.percentile(seconds, 95)),
        "mapped_bytes_a_passage": sum(path.stat().st_size for path in arrays) / count,
        "resident_bytes_a_passage": (status("VmRSS") - before) / count,
        "own_bytes_a_passage": (status("RssAnon") - own_before) / count,
    }


def read_through(corpus: str, count: int) -> dict[str, Any]:
    """Find the passages of one turn without a store."""
    drawn = np.random.default_rng(2).choice(count, size=FOR_ONE_TURN, replace=False)
    ids = {f"passage_{i}" for i in drawn.tolist()}
    wall, processor = timed(lambda: Corpus(corpus).find(ids))
    return {"looked_up": len(ids), "seconds": wall, "processor_seconds": processor}


def main(arguments: Sequence[str]) -> dict[str, Any]:
    """Measure, print, write."""
    given = read_arguments(arguments, KEYS)
    count = int(given.get("passages", 5_000_000))
    with tempfile.TemporaryDirectory() as folder:
        corpus, directory = str(Path(folder) / "corpus.jsonl"), str(Path(folder) / "store")
        write_corpus(Path(corpus), count)
        result: dict[str, Any] = {
            "passages": count,
            "corpus_bytes": Path(corpus).stat().st_size,
            "build": apart(build, corpus, directory),
            "store": apart(look_up, corpus, directory, count),
            "without_a_store": apart(read_through, corpus, count),
            "hardware": nameless_hardware(),
        }
    for part in ("build", "store", "without_a_store"):
        print(part, ", ".join(f"{name} {value:,.3f}" for name, value in result[part].items()))
    if "out" in given:
        write_json(given["out"], result)
    return result


if __name__ == "__main__":
    run_main(main)
