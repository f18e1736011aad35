"""The Pyserini retriever over a stand-in for Pyserini, which is optional and needs Java.

The stand-in has the classes, calls and files of Pyserini 1.6 that are used, and counts shared words as a score.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dense_toy import passage_texts, write_corpus

from finegrained_lab.baselines.pyserini import PyseriniConfig, PyseriniError
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.retrieval.record import RecordedConfig

TEXTS = [*passage_texts(20), "  "]
IDS = [f"p{i:03d}" for i in range(21)]
QUERIES = ["old mill near the river", "stone", "zebra", "stone"]

INDEX = """
import argparse, json, pathlib, sys

class LuceneIndexReader:
    def __init__(self, index_dir):
        self.documents = json.loads((pathlib.Path(index_dir) / "segments_1").read_text())

    def doc(self, docid):
        return self.documents.get(docid)

    def compute_query_document_score(self, docid, query, similarity=None):
        words = self.documents[docid].split()
        return similarity["k1"] * sum(word in words for word in query.split())

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("collection", "input", "index", "generator", "threads"):
        parser.add_argument("--" + name, required=True)
    options = parser.parse_args()
    assert options.collection == "JsonCollection" and options.generator == "DefaultLuceneDocumentGenerator"
    if options.threads == "3":
        sys.exit("java.lang.OutOfMemoryError")
    documents = {}
    for file in pathlib.Path(options.input).glob("*.jsonl"):
        for line in file.read_text().splitlines():
            row = json.loads(line)
            if row["contents"].strip():
                documents[row["id"]] = row["contents"]
    if options.threads == "2":
        documents.popitem()
    (pathlib.Path(options.index) / "segments_1").write_text(json.dumps(documents))
"""

SEARCH = """
from types import SimpleNamespace

from pyserini.index.lucene import LuceneIndexReader

class LuceneSearcher:
    def __init__(self, index_dir):
        self.reader = LuceneIndexReader(index_dir)
        self.num_docs = len(self.reader.documents)
        self.similarity = {"k1": 0.9, "b": 0.4}

    def set_bm25(self, k1, b):
        self.similarity = {"k1": k1, "b": b}

    def get_similarity(self):
        return self.similarity

    def batch_search(self, queries, qids, k, threads):
        found = {}
        for query, qid in zip(queries, qids, strict=True):
            scored = [(-self.reader.compute_query_document_score(id, query, self.similarity), id)
                      for id in self.reader.documents]
            hits = [SimpleNamespace(docid=id, score=-score) for score, id in sorted(scored) if score < 0]
            if hits:
                found[qid] = hits[:k]
        return found
"""


@pytest.fixture
def pyserini(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that this process and its children import as Pyserini."""
    package = tmp_path / "site" / "pyserini"
    for name, content in {"__init__": "", "index/__init__": "", "search/__init__": "", "search/lucene": SEARCH}.items():
        (package / f"{name}.py").parent.mkdir(parents=True, exist_ok=True)
        (package / f"{name}.py").write_text(content)
    (package / "index" / "lucene.py").write_text(INDEX)
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyserini"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    return package


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    return str(write_corpus(tmp_path / "corpus.jsonl", TEXTS))


def config(**more: Any) -> PyseriniConfig:
    return PyseriniConfig(**{"threads": 1, "progress": False, **more})


@pytest.fixture(autouse=True)
def forgotten() -> Any:
    """No test leaves its Pyserini behind."""
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyserini"]:
        del sys.modules[name]


def test_build_and_use(pyserini: Path, corpus: str, tmp_path: Path) -> None:
    config(k1=0.5).build(corpus, tmp_path / "index")
    assert sorted(path.name for path in (tmp_path / "index").iterdir()) == ["index.json", "lucene"]
    retriever = config(k1=0.5).open(tmp_path / "index")
    scores = retriever.score_pool(QUERIES, IDS)
    shared = [[0.5 * sum(word in text.split() for word in query.split()) for text in TEXTS] for query in QUERIES]
    assert scores.dtype == np.float32 and (scores == np.array(shared)).all()
    assert (retriever.score_pool(QUERIES, ["p003", "p020", "p003"]) == scores[:, [3, 20, 3]]).all()
    found = retriever.search(QUERIES, 4)
    assert found[1] == found[3] and found[2] == [] and len(found[0]) == 4
    for hits, row in zip(found, scores, strict=True):
        assert [hit.score for hit in hits] == [row[IDS.index(hit.id)] for hit in hits]
    assert retriever.search([], 3) == [] and retriever.score_pool([], IDS).shape == (0, 21)
    assert RecordedConfig().open(tmp_path / "index").search(QUERIES, 4) == found
    lucene = tmp_path / "index" / "lucene" / "segments_1"
    before = lucene.stat().st_mtime_ns
    config(k1=0.5).build(corpus, tmp_path / "index")
    assert lucene.stat().st_mtime_ns == before
    assert config(k1=1.0).open(tmp_path / "index").score_pool(QUERIES, IDS).max() == 2 * scores.max()


def test_bad_input(pyserini: Path, corpus: str, tmp_path: Path) -> None:
    config().build(corpus, tmp_path / "index")
    retriever = config().open(tmp_path / "index")
    assert retriever.missing([IDS[0], "p999", IDS[1]]) == ["p999"]
    with pytest.raises(DataError, match="no passage with the id 'p999'"):
        retriever.score_pool(QUERIES, ["p001", "p999"])
    with pytest.raises(ConfigError, match="k: expected at least 1"):
        retriever.search(QUERIES, 0)
    short = str(write_corpus(tmp_path / "short.jsonl", TEXTS[:2]))
    with pytest.raises(ConfigError, match="another corpus"):
        config().build(short, tmp_path / "index")
    with pytest.raises(DataError, match="no index here"):
        config().open(tmp_path / "nothing")
    for wrong, message in (({"b": 1.5}, "b: expected at least 0 and at most 1"), ({"threads": 0}, "threads")):
        with pytest.raises(ConfigError, match=message):
            config(**wrong)


def test_a_failed_indexer(pyserini: Path, corpus: str, tmp_path: Path) -> None:
    with pytest.raises(PyseriniError, match="indexer failed: java.lang.OutOfMemoryError"):
        config(threads=3).build(corpus, tmp_path / "index")
    with pytest.raises(DataError, match="not finished"):
        config().open(tmp_path / "index")
    with pytest.raises(PyseriniError, match="took 19 of 21 passages"):
        config(threads=2).build(corpus, tmp_path / "index")
    config().build(corpus, tmp_path / "index")
    assert config().open(tmp_path / "index").search(["stone"], 1)[0]


def test_without_pyserini_or_java(pyserini: Path, corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (pyserini / "search" / "lucene.py").write_text("raise SystemError('JVM failed to start: -1')")
    with pytest.raises(ConfigError, match="finds no Java.*JVM failed to start.*JAVA_HOME"):
        config().build(corpus, tmp_path / "index")
    assert not (tmp_path / "index").exists()
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyserini"]:
        del sys.modules[name]
    monkeypatch.setitem(sys.modules, "pyserini", None)
    with pytest.raises(ConfigError, match="pip install pyserini"):
        config().build(corpus, tmp_path / "index")
