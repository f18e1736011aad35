"""Retrieval: how fast and how large an index is, how long a search takes, and how many rewards a second a pool gives.

Examples:
    python benchmarks/retrieval.py out=benchmarks/results/retrieval.json
    python benchmarks/retrieval.py passages=20000 pool_passages=5000 out=small.json
    python benchmarks/retrieval.py passages=200000 words=378 sides=none shard_size=100000 out=retrieval_378_words.json

Needs bm25s, PyStemmer and, for dense rewards, torch and transformers; no network. Knows the command line and what is
measured; the corpus is in `retrieval_workload.py`. See docs/benchmarks.md.

`passages` of `words` words on average are generated, indexed and searched, each in a process of its own, whose peak of
resident memory (mapped files included) is read from the system. Rewards are measured on an index of `pool_passages` of
them; they do not depend on the size of the corpus; `sides=none` measures none. The plain side is bm25s as its
documentation shows it: the whole corpus in memory, and each rewrite scored against all of it. Processor time is given
beside wall time, because other programs disturb it less.
"""

from __future__ import annotations

import multiprocessing
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from benchmarks.command import read_arguments, run_main
from benchmarks.retrieval_workload import LENGTH, VOCABULARY, passages, rewrites, write_corpus
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.retrieval.arrays import open_arrays
from finegrained_rlhf.retrieval.bm25.retriever import Bm25Config
from finegrained_rlhf.retrieval.protocol import PoolScorer, RetrieverConfig
from finegrained_rlhf.retrieval.record import read_index_record
from finegrained_rlhf.text.tables import markdown_table

GROUPS, SAMPLES, POOL, REPEATS = 64, 6, 128, 20
QUERIES, K = 200, 100
TARGET = 54_000_000
"""Passages of the corpus that the thesis retrieves from (QReCC)."""
SIDES = ("bm25", "bm25_light", "dense")
KEYS = ("out", "passages", "pool_passages", "shard_size", "directory", "sides", "words")


def status(field: str) -> int:
    """Bytes of this process, from Linux's `/proc`."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Wall and processor seconds."""
    wall, processor = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - processor


def apart(work: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """The result of a function that runs in a new process, so that its memory is its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, arguments)


def build(config: RetrieverConfig, corpus: str, directory: str, count: int) -> dict[str, Any]:
    """Build an index."""
    start = status("VmHWM")
    wall, processor = timed(lambda: config.build(corpus, Path(directory)))
    return {
        "passages": count,
        "seconds": wall,
        "processor_seconds": processor,
        "passages_a_second": count / wall,
        "passages_a_processor_second": count / processor,
        "peak_bytes": status("VmHWM"),
        "peak_bytes_before": start,
    }


def search(config: RetrieverConfig, directory: str, queries: list[str]) -> dict[str, Any]:
    """Open an index and search it, one query at a time."""
    opened = time.perf_counter()
    index = config.open(Path(directory))
    opened = time.perf_counter() - opened
    found: list[int] = []
    seconds = np.array([timed(lambda q=q: found.append(len(index.search([q], K)[0]))) for q in queries])  # type: ignore[misc]
    return {
        "queries": len(queries),
        "k": K,
        "hits_a_query": sum(found) / len(queries),
        "open_seconds": opened,
        "median_ms": 1000 * float(np.median(seconds[:, 0])),
        "p95_ms": 1000 * float(np.percentile(seconds[:, 0], 95)),
        "processor_median_ms": 1000 * float(np.median(seconds[:, 1])),
        "peak_bytes": status("VmHWM"),
        "anonymous_bytes": status("RssAnon"),
    }


def disk(directory: Path) -> dict[str, Any]:
    """Bytes of an index: whole, and what a passage and a posting (a term in a passage) take."""
    count = int(read_index_record(directory).statistics["passages"])
    files = [path for path in directory.rglob("*") if path.is_file()]
    whole = sum(path.stat().st_size for path in files)
    postings = sum(len(open_arrays(path)["terms"]) for path in files if path.name == "counts.safetensors")
    a_posting = 4 + 2 + 4 + 4  # term and count by passage, passage and weight by term
    return {
        "bytes": whole,
        "bytes_a_passage": whole / count,
        "postings_a_passage": postings / count,
        "bytes_a_posting": a_posting,
        "other_bytes_a_passage": (whole - a_posting * postings) / count,
    }


def rewards(scorer: PoolScorer, texts: list[str], repeats: int = REPEATS) -> dict[str, Any]:
    """Score batches of rewrites against pools of passages that were not seen before; then the same ones again."""
    batches = [rewrites(texts, GROUPS, SAMPLES, seed) for seed in range(repeats + 1)]
    draw = np.random.default_rng(1)
    ids = [f"passage_{i}" for i in draw.permutation(len(texts))[: POOL * (repeats + 1)]]
    pools = [ids[POOL * i : POOL * (i + 1)] for i in range(repeats + 1)]
    found: dict[str, Any] = {"rewrites": GROUPS * SAMPLES, "pool": POOL, "repeats": repeats}
    for name in ("new_pool", "known_pool"):
        times = [timed(lambda b=b, p=p: scorer.score_pool(b, p)) for b, p in zip(batches, pools, strict=True)][1:]  # type: ignore[misc]
        wall, processor = np.median(np.array(times), axis=0)
        found[name] = {
            "ms": 1000 * wall,
            "processor_ms": 1000 * processor,
            "rewards_a_second": GROUPS * SAMPLES / wall,
            "rewards_a_processor_second": GROUPS * SAMPLES / processor,
        }
    return found


def plain_side(texts: list[str], index: PoolScorer, repeats: int = 3) -> dict[str, Any]:
    """bm25s alone: build, and score each rewrite against the whole corpus; and how far its scores are from ours."""
    from bm25s import BM25

    words = Bm25Config().words
    plain = BM25(k1=0.82, b=0.68, method="lucene")
    tokenized = [words.terms(text) for text in texts[:1]]

    def make() -> None:
        nonlocal tokenized
        term = words.terms
        tokenized = [term(text) for text in texts]
        plain.index(tokenized, show_progress=False)

    built = timed(make)
    pool = np.random.default_rng(2).permutation(len(texts))[:POOL]
    times, gap = [], 0.0
    for seed in range(repeats):
        batch = rewrites(texts, GROUPS, SAMPLES, seed)
        scores: list[np.ndarray] = []
        times.append(timed(lambda s=scores, b=batch: s.extend(plain.get_scores(words.terms(q))[pool] for q in b)))  # type: ignore[misc]
        ours = index.score_pool(batch, [f"passage_{i}" for i in pool])
        gap = max(gap, float(np.abs(np.array(scores) - ours).max()))
    wall, processor = np.median(np.array(times), axis=0)
    return {
        "passages_a_second": len(texts) / built[0],
        "passages_a_processor_second": len(texts) / built[1],
        "rewards_a_second": GROUPS * SAMPLES / wall,
        "rewards_a_processor_second": GROUPS * SAMPLES / processor,
        "largest_difference": gap,
    }


def measure_pools(folder: Path, count: int, words: int, sides: Sequence[str]) -> dict[str, Any]:
    """Rewards a second of every retriever that can give them, on an index of the first passages."""
    from benchmarks.retrieval_encoders import dense_config, light_config

    texts = [text for _, text in passages(count, length=words)]
    corpus = _corpus_path(folder, count, words)
    write_corpus(corpus, count, words)
    found: dict[str, Any] = {"passages": count}
    configs: dict[str, Callable[[], RetrieverConfig]] = {
        "bm25": Bm25Config,
        "bm25_light": lambda: light_config(folder, texts),
        "dense": lambda: dense_config(folder, texts),
    }
    for name in sides:
        config, some, where, repeats = configs[name](), texts, corpus, min(REPEATS, count // POOL - 1)
        if name == "dense":  # every passage goes through the encoder
            repeats = min(repeats, 2)
            some = texts[: POOL * (repeats + 1)]
            where = _corpus_path(folder, len(some), words)
            write_corpus(where, len(some), words)
        directory = folder / f"pool_{name}"
        shutil.rmtree(directory, ignore_errors=True)
        config.build(str(where), directory)
        found[name] = rewards(config.open(directory), some, repeats)
        if name == "bm25":
            found["bm25s"] = plain_side(texts, config.open(directory))
    return found


def _corpus_path(folder: Path, count: int, words: int) -> Path:
    return folder / f"corpus_{count}_of_{words}_words.jsonl"


def tables(result: dict[str, Any]) -> str:
    """What was measured, for people."""
    rows = []
    for name in (name for name in SIDES if name in result["pools"]):
        for pool in ("new_pool", "known_pool"):
            times = result["pools"][name][pool]
            rows.append({"retriever": name, "pool": pool.replace("_", " "), **times})
    columns = ["retriever", "pool", "ms", "rewards_a_second", "rewards_a_processor_second"]
    index = [{"what": f"{part}: {name}", "value": value} for part in ("build", "search", "disk", "extrapolation")
             for name, value in result[part].items()]  # fmt: skip
    return markdown_table(index, ["what", "value"]) + ("\n" + markdown_table(rows, columns) if rows else "")


def main(arguments: Sequence[str]) -> None:
    """Measure, print tables, write JSON."""
    import torch

    from benchmarks.machine import describe_machine

    given = read_arguments(arguments, KEYS)
    try:
        count, pool = int(given.get("passages", 5_000_000)), int(given.get("pool_passages", 200_000))
        config = Bm25Config(shard_size=int(given.get("shard_size", 500_000)))
        words = int(given.get("words", LENGTH))
    except ValueError as error:
        raise ConfigError(f"expected whole numbers ({error})") from None
    if words < 1:
        raise ConfigError(f"words: expected at least 1, got {words}")
    named = given.get("sides", ",".join(SIDES))
    sides = [] if named == "none" else named.split(",")
    if not set(sides) <= set(SIDES):
        raise ConfigError(f"sides: expected none or some of {','.join(SIDES)}, got {named}")
    folder = Path(given.get("directory") or tempfile.mkdtemp(prefix="retrieval_"))
    folder.mkdir(parents=True, exist_ok=True)
    corpus, directory = _corpus_path(folder, count, words), folder / "index"
    write_corpus(corpus, count, words)
    shutil.rmtree(directory, ignore_errors=True)
    built = apart(build, config, str(corpus), str(directory), count)
    queries = rewrites([text for _, text in islice(passages(count, length=words), 10_000)], QUERIES, 1)
    found = apart(search, config, str(directory), queries)
    size = disk(directory)
    result = {
        "machine": describe_machine(torch.device("cpu"), "fp32"),
        "corpus": {"passages": count, "mean_words": words, "vocabulary": VOCABULARY, "bytes": corpus.stat().st_size},
        "build": built,
        "search": found,
        "disk": {**size, **read_index_record(directory).statistics},
        "extrapolation": {
            "passages": TARGET,
            "disk_bytes": TARGET * size["bytes_a_passage"],
            "build_processor_hours": TARGET / built["passages_a_processor_second"] / 3600,
            "search_processor_ms": found["processor_median_ms"] * TARGET / count,
        },
        "pools": measure_pools(folder, min(pool, count), words, sides) if sides else {},
    }
    print(tables(result))
    if "out" in given:
        write_json(Path(given["out"]), result)


if __name__ == "__main__":
    run_main(main)
