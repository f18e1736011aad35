"""The shortest real runs of `finegrained build-index` and `finegrained search`, and the files they read and write."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from retrieval_toy import write_corpus
from script_runs import run_script

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.models.tiny_networks import build_tokenizer
from finegrained_rlhf.retrieval.bm25.retriever import Bm25Config, Bm25LightConfig
from finegrained_rlhf.retrieval.jobs import BuildIndex, Query, Search, read_queries
from finegrained_rlhf.retrieval.runs import read_trec_run

PASSAGES = {"a": "the lighthouse of Arlo is red", "b": "the bridge of Arlo is long", "c": "ships sail"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("retrieval")
    BuildIndex(str(write_corpus(path / "corpus.jsonl", PASSAGES)), str(path / "index"), Bm25Config()).run()
    return path


@pytest.mark.scripts
def test_an_index_is_built_and_searched(folder: Path, tmp_path: Path) -> None:
    corpus = f"corpus={folder}/corpus.jsonl"
    done = run_script("build_index", corpus, f"output_dir={tmp_path}/index", "retriever.k1=0.9")
    assert done.returncode == 0 and "3 passages, 8 tokens" in done.stderr, done.stderr
    done = run_script(
        "search", f"index={tmp_path}/index", "queries=['Where is the red lighthouse?','nothing']", corpus, "k=2"
    )
    assert done.returncode == 0, done.stderr
    first, second = map(json.loads, done.stdout.splitlines())
    assert first["hits"][0].items() >= {"id": "a", "text": PASSAGES["a"], "title": ""}.items()
    assert second == {"id": "2", "query": "nothing", "hits": []}
    done = run_script("search", f"index={tmp_path}/index", "queries=[red]", "retriever=bm25")
    assert done.returncode == 2 and "built with other settings (k1 0.9, here 0.82)" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.scripts
def test_a_text_needs_no_quotes_for_an_apostrophe(tmp_path: Path) -> None:
    """The next thing that is missing is the index."""
    for argument in ("queries=[What's new?]", 'queries=["What\'s new, today?"]'):
        asked = run_script("search", f"index={tmp_path}/none", argument)
        assert asked.returncode == 2 and asked.stderr.startswith(f"error: index: {tmp_path}/none: no such file")


def test_a_run_of_an_index_of_sub_words(folder: Path, tmp_path: Path) -> None:
    build_tokenizer(PASSAGES.values()).save_pretrained(tmp_path / "tokenizer")
    light = Bm25LightConfig(str(tmp_path / "tokenizer"))
    BuildIndex(str(folder / "corpus.jsonl"), str(tmp_path / "light"), light).run()
    (tmp_path / "queries.tsv").write_text("q1\tships of Arlo\n")
    job = Search(
        str(tmp_path / "light"), input=str(tmp_path / "queries.tsv"), output=str(tmp_path / "run.trec"), retriever=light
    )
    job.run()
    assert [hit.id for hit in read_trec_run(tmp_path / "run.trec")["q1"]] == ["c", "b", "a"]
    with pytest.raises(ConfigError, match=r"queries: expected texts with words, got \['ships', ' '\]"):
        Search(str(tmp_path / "light"), ["ships", " "])
    with pytest.raises(ConfigError, match="give input=FILE, or queries"):
        Search(str(tmp_path / "light")).run()


def test_forms_of_queries_and_of_answers(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "q.jsonl").write_text('{"id": "x", "query": "red Arlo"}\n{"id": "y", "query": ""}\n')
    (tmp_path / "q.txt").write_text("red Arlo\n\nsail\n")
    assert read_queries(str(tmp_path / "q.txt")) == [Query("1", "red Arlo"), Query("3", "sail")]
    for output in ("found.jsonl", "found.trec"):
        job = Search(str(folder / "index"), input=str(tmp_path / "q.jsonl"), output=str(tmp_path / output), k=5)
        job.run()
    rows = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
    assert [[hit["id"] for hit in row["hits"]] for row in rows] == [["a", "b"], []]
    found = read_trec_run(tmp_path / "found.trec")
    assert [(hit.id, round(hit.score, 6)) for hit in found["x"]] == [(h["id"], h["score"]) for h in rows[0]["hits"]]
    assert "2 queries -> " in capsys.readouterr().out


def test_queries_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("one\ntwo"))
    assert read_queries("-") == [Query("1", "one"), Query("2", "two")]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("q.jsonl", '{"id": "x"}', r"q\.jsonl, record 0, field query: expected a string, it is missing"),
        ("q.jsonl", '{"id": 1, "query": ""}', r"q\.jsonl, record 0, field id: expected a string, got int"),
        ("q.tsv", "a\tx\nb", r"q\.tsv:2: expected id and query, separated by one tab, got 'b'"),
        ("q.tsv", "a\tx\na\ty", r"q\.tsv, record a, field id: this id occurs twice"),
        ("q.txt", "\n", r"q\.txt: holds no query"),
    ],
)
def test_broken_queries(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message):
        read_queries(str(tmp_path / name))


def test_settings_that_contradict() -> None:
    for values, message in (
        ({"queries": ["a"], "input": "b"}, "either input or queries"),
        ({"queries": ["a"], "k": 0}, "k: expected at least 1, got 0"),
        ({"queries": ["a"], "corpus": "c", "output": "run.trec"}, "a TREC run holds no texts"),
    ):
        with pytest.raises(ConfigError, match=message):
            Search("index", **values)
    with pytest.raises(DataError, match="nowhere.txt: no such file"):
        read_queries("nowhere.txt")
