"""The retrieval benchmark: its corpus, and a run from end to end on a little one."""

from __future__ import annotations

import json
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
from script_runs import run_script

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import note_index
from benchmarks import retrieval_workload as workload
from finegrained_rlhf.personalization import FaissIndex

ROOT = Path(__file__).parents[2]


def test_the_words_are_different_and_zipfian() -> None:
    words = workload.vocabulary(20_000)
    assert len(set(words)) == 20_000 and all(len(word) >= 4 for word in words)
    texts = [text for _, text in islice(workload.passages(5000), 5000)]
    counts = Counter(word for text in texts for word in text.split())
    assert sum(counts.values()) / 5000 == pytest.approx(12, abs=0.2)
    ranked = [count for _, count in counts.most_common(100)]
    assert ranked[9] / ranked[99] == pytest.approx((100 + 2.7) ** 1.05 / (10 + 2.7) ** 1.05, rel=0.3)


def test_a_corpus_is_drawn_from_its_seed() -> None:
    assert list(workload.passages(10)) == list(workload.passages(10)) != list(workload.passages(10, seed=1))
    assert [id for id, _ in workload.passages(3)] == ["passage_0", "passage_1", "passage_2"]


def test_passages_of_another_length(tmp_path: Path) -> None:
    workload.write_corpus(tmp_path / "corpus.jsonl", 300, 378)
    rows = [json.loads(line) for line in (tmp_path / "corpus.jsonl").read_text().splitlines()]
    assert len(rows) == 300 and sum(len(row["text"].split()) for row in rows) / 300 == pytest.approx(378, abs=5)


def test_rewrites_of_a_batch() -> None:
    texts = ["a b c d", "e f g h"]
    found = workload.rewrites(texts, groups=5, samples=3, seed=1)
    assert len(found) == 15 and found == workload.rewrites(texts, 5, 3, 1) != workload.rewrites(texts, 5, 3, 2)
    assert all(4 <= len(text.split()) <= 12 and set(text.split()) <= set("abcdefgh") for text in found)


@pytest.mark.slow
@pytest.mark.scripts
def test_a_little_run(tmp_path: Path) -> None:
    arguments = [
        "passages=600",
        "pool_passages=400",
        "shard_size=250",
        "sides=bm25,bm25_light",
        f"directory={tmp_path}",
    ]
    done = run_script(str(ROOT / "benchmarks/retrieval.py"), *arguments, f"out={tmp_path}/result.json")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["disk"]["shards"] == 3 and result["build"]["passages"] == 600
    assert result["pools"]["bm25s"]["largest_difference"] < 1e-5
    assert "rewards_a_second" in done.stdout
    few = ["passages=60", "words=90", "sides=none", f"directory={tmp_path}", f"out={tmp_path}/long.json"]
    done = run_script(str(ROOT / "benchmarks/retrieval.py"), *few)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "long.json").read_text())
    assert result["pools"] == {} and result["corpus"]["mean_words"] == 90
    assert result["disk"]["postings_a_passage"] > 40
    done = run_script(str(ROOT / "benchmarks/retrieval.py"), "words=0")
    assert done.returncode == 2 and "error: words: expected at least 1, got 0" in done.stderr
    done = run_script(str(ROOT / "benchmarks/retrieval.py"), "passages=many")
    assert done.returncode == 2 and "error: expected whole numbers" in done.stderr


def test_the_store_of_passages_end_to_end(tmp_path: Path) -> None:
    done = run_script(str(ROOT / "benchmarks/passage_store.py"), "passages=300", f"out={tmp_path}/store.json")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "store.json").read_text())
    assert found["passages"] == 300 and 16 <= found["store"]["mapped_bytes_a_passage"] < 17.5
    assert found["store"]["looked_up"] == 10_000 and found["without_a_store"]["looked_up"] == 50


def test_reading_annotations_end_to_end(tmp_path: Path) -> None:
    done = run_script(str(ROOT / "benchmarks/annotation_reading.py"), "tasks=20", f"out={tmp_path}/reading.json")
    assert done.returncode == 0 and "20 annotations of 1 annotators" in done.stdout, done.stderr
    found = json.loads((tmp_path / "reading.json").read_text())
    assert found["tasks"] == 20 and found["seconds"] > 0


def test_what_ivf_pq_loses_end_to_end(tmp_path: Path) -> None:
    sizes = ["vectors=600", "dimension=8", "codes=2", "queries=40", "lists=6", "probes=1,6", "refine=1,75", "k=1,8"]
    done = run_script(str(ROOT / "benchmarks/ivf_pq.py"), *sizes, f"out={tmp_path}/found.json")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["vectors"], found["dimension"], found["lists"], found["codes"]) == (600, 8, 6, 2)
    assert found["bytes_a_vector"]["float32"] == 32 and found["bytes_a_vector"]["ivf_pq"] > 10
    rows = {(row["probes"], row["refine"]): row for row in found["ivf_pq"]}
    whole = rows[6, 75]  # every list, and every vector of it
    assert whole["hit"] == found["flat"]["hit"] and 0 < whole["hit"]["1"] < whole["hit"]["8"]
    assert set((whole["nearest"] | whole["agreement"]).values()) == {1.0}
    assert rows[1, 75]["agreement"]["8"] < 1 and rows[1, 75]["nearest"]["1"] <= rows[6, 75]["nearest"]["1"]
    done = run_script(str(ROOT / "benchmarks/ivf_pq.py"), "probes=8,none")
    assert done.returncode == 2 and "probes: expected whole numbers from 1 on, got '8,none'" in done.stderr


def test_notes_are_sought_by_both_indexes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faiss")
    out = tmp_path / "notes.json"
    note_index.main(["notes=9,30", "rounds=2", f"out={out}"])
    found = json.loads(out.read_text())["milliseconds"]
    kinds = {"first", "respond", "after a note"}
    assert all(set(found[count][name]) == kinds for count in ("9", "30") for name in ("exact", "faiss"))
    monkeypatch.setattr(FaissIndex, "nearest", lambda *given: [])
    with pytest.raises(SystemExit, match="9 notes: the indexes differ"):
        note_index.measure(9, 2)
