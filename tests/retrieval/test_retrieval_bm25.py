"""BM25 against a hand example and bm25s itself; shards against one; pools against search; indexes that were killed."""

from __future__ import annotations

import math
import os
import random
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bm25s import BM25
from retrieval_toy import random_passages, random_queries, write_corpus

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.retrieval.arrays import StringTable, open_arrays, save_arrays, string_arrays
from finegrained_rlhf.retrieval.bm25 import sharded
from finegrained_rlhf.retrieval.bm25.postings import WordConfig
from finegrained_rlhf.retrieval.bm25.retriever import Bm25Config, Bm25Index
from finegrained_rlhf.retrieval.jobs import Search
from finegrained_rlhf.retrieval.protocol import Hit
from finegrained_rlhf.retrieval.record import RecordedConfig
from finegrained_rlhf.retrieval.runs import read_trec_run

PLAIN = Bm25Config(stemmer="none", stop_words="none")


def index(directory: Path, passages: dict[str, str], config: Bm25Config = PLAIN) -> Bm25Index:
    corpus = write_corpus(directory.with_suffix(".jsonl"), passages)
    config.build(str(corpus), directory)
    return config.open(directory)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bm25Index, dict[str, str]]:
    passages = random_passages(300)
    return index(tmp_path_factory.mktemp("toy") / "index", passages), passages


def test_a_hand_example(tmp_path: Path) -> None:
    """Three passages, average length 3. `lake` is in two of them, `deep` in one (twice)."""
    found = index(tmp_path / "index", {"a": "lake deep deep Deep!", "b": "the lake", "c": "a red hill"})
    idf_lake, idf_deep = math.log(1 + 1.5 / 2.5), math.log(1 + 2.5 / 1.5)
    norm_a, norm_b = 0.82 * (0.32 + 0.68 * 4 / 3), 0.82 * (0.32 + 0.68 * 2 / 3)
    lake_a, lake_b, deep_a = idf_lake / (1 + norm_a), idf_lake / (1 + norm_b), idf_deep * 3 / (3 + norm_a)
    hits = found.search(["Deep lake", "lake lake", "mud"], k=5)
    assert [[hit.id for hit in row] for row in hits] == [["a", "b"], ["b", "a"], []]
    assert [hit.score for hit in hits[0]] == pytest.approx([deep_a + lake_a, lake_b], abs=1e-6)
    assert [hit.score for hit in hits[1]] == pytest.approx([2 * lake_b, 2 * lake_a], abs=1e-6)
    pool = found.score_pool(["Deep lake", "mud"], ["c", "b", "a"])
    assert pool.dtype == np.float32
    assert pool == pytest.approx(np.array([[0, lake_b, deep_a + lake_a], [0, 0, 0]]), abs=1e-6)


def test_many_passages_name_lucene_and_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """From one passage more than `MANY` on."""
    monkeypatch.setattr(sharded, "MANY", 2)
    index(tmp_path / "two", {"a": "lake", "b": "hill"})
    assert "Lucene" not in caplog.text
    index(tmp_path / "three", {"a": "lake", "b": "hill", "c": "mud"})
    assert "3 passages" in caplog.text and "Lucene (retriever=pyserini)" in caplog.text
    assert "a server (retriever=opensearch)" in caplog.text


@pytest.mark.parametrize("backend", ["numpy", "scipy"])
def test_scores_are_those_of_bm25s(toy: tuple[Bm25Index, dict[str, str]], backend: str) -> None:
    """bm25s counts, weighs and inverts the corpus itself, through its Python loops."""
    found, passages = toy
    theirs = BM25(k1=0.82, b=0.68, method="lucene", csc_backend=backend)
    theirs.index([text.split() for text in passages.values()], show_progress=False)
    queries = random_queries(30)
    ours = found.score_pool(queries, list(passages))
    known = {word for text in passages.values() for word in text.split()}
    for query, row in zip(queries, ours, strict=True):
        words = [word for word in query.split() if word in known]
        assert row == pytest.approx(theirs.get_scores(words) if words else np.zeros(len(row)), abs=1e-5)


def everything(found: Bm25Index, queries: list[str], ids: list[str]) -> list[list[Hit]]:
    """All passages with a score above 0, sorted as the protocol says."""
    table = found.score_pool(queries, ids)
    hits = [[Hit(id, float(score)) for id, score in zip(ids, row, strict=True) if score > 0] for row in table]
    return [sorted(sorted(row, key=lambda h: h.id, reverse=True), key=lambda h: -h.score) for row in hits]


@pytest.mark.parametrize("k", [1, 7, 1000])
def test_search_gives_the_best_of_the_pool_of_all(toy: tuple[Bm25Index, dict[str, str]], k: int) -> None:
    """Exactly: the same bits, and ties by id, descending, also where they reach over the k-th place."""
    found, passages = toy
    queries = [*random_queries(30), "unheard", "", *list(passages.values())[:1]]
    expected = everything(found, queries, list(passages))
    assert found.search(queries, k) == [row[:k] for row in expected]
    cut_ties = sum(len(row) > 7 and row[6].score == row[7].score for row in expected)
    assert cut_ties > 3 and [] in expected


def test_ties_go_by_id_descending(tmp_path: Path) -> None:
    passages = dict.fromkeys(("b", "é", "a10", "a9", "Z", "aa"), "one two") | {"x": "one one one"}
    for size in (7, 3, 1):
        found = index(tmp_path / f"i{size}", passages, replace(PLAIN, shard_size=size))
        order = [hit.id for hit in found.search(["one"], 7)[0]]
        assert order == ["x", "é", "b", "aa", "a9", "a10", "Z"]
        assert [hit.id for hit in found.search(["one"], 3)[0]] == order[:3]


@pytest.mark.parametrize("shards", [2, 5])
def test_shards_change_nothing(toy: tuple[Bm25Index, dict[str, str]], tmp_path: Path, shards: int) -> None:
    found, passages = toy
    config = replace(PLAIN, shard_size=math.ceil(len(passages) / shards))
    cut = index(tmp_path / "index", passages, config)
    assert len(list((tmp_path / "index/shards").iterdir())) == shards and len(cut) == len(found) == 300
    queries = random_queries(40)
    for k in (3, 50):
        assert cut.search(queries, k) == found.search(queries, k)  # ids and scores, to the last bit
    assert np.array_equal(cut.score_pool(queries, list(passages)), found.score_pool(queries, list(passages)))


def test_a_pool_may_be_shuffled_and_repeated(toy: tuple[Bm25Index, dict[str, str]]) -> None:
    found, passages = toy
    queries, ids = random_queries(20), list(passages)[:40]
    before = found.score_pool(queries, ids)
    mixed = random.Random(0).choices(range(40), k=100)
    repeated = random.Random(1).choices(range(20), k=33)
    after = found.score_pool([queries[q] for q in repeated], [ids[i] for i in mixed])
    assert np.array_equal(after, before[np.ix_(repeated, mixed)])
    alone = np.array([[found.score_pool([query], [id])[0, 0] for id in ids[:5]] for query in queries[:5]])
    assert np.array_equal(alone, before[:5, :5])
    assert found.score_pool([], ids).shape == (0, 40) and found.score_pool(queries, []).shape == (20, 0)
    assert not found.score_pool(["", "unheard"], ids).any()


def test_remembered_passages_are_forgotten_and_read_again(
    toy: tuple[Bm25Index, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, passages = toy
    monkeypatch.setattr("finegrained_rlhf.retrieval.bm25.retriever._REMEMBERED", 5)
    ids = list(passages)
    queries = random_queries(5)
    whole = found.score_pool(queries, ids)
    for start in (0, 3, 50, 0):
        assert np.array_equal(found.score_pool(queries, ids[start : start + 10]), whole[:, start : start + 10])


def test_ids_with_spaces_from_the_corpus_to_the_run(tmp_path: Path) -> None:
    """Such ids are found, scored, searched from Python and by the job, and written to a TREC run that reads back."""
    write_corpus(tmp_path / "c.jsonl", {"Grand Canyon 3": "a deep red canyon", "sea": "a blue sea"})
    (tmp_path / "c.tsv").write_text("Red Sea\ta red sea\n")
    PLAIN.build(str(tmp_path), tmp_path / "index")
    index = PLAIN.open(tmp_path / "index")
    assert index.search(["canyon"], 1)[0][0].id == "Grand Canyon 3" and index.missing(["Red Sea", "Red"]) == ["Red"]
    assert index.score_pool(["red"], ["Red Sea", "sea"])[0].argmax() == 0
    Search(str(tmp_path / "index"), ["canyon", "red sea"], output=str(tmp_path / "run.trec")).run()
    found = read_trec_run(tmp_path / "run.trec")
    assert found["2"][0].id == "Red Sea" and found["1"][0].id == "Grand Canyon 3"


def test_errors(toy: tuple[Bm25Index, dict[str, str]], tmp_path: Path) -> None:
    found, passages = toy
    known = list(passages)[:3]
    assert found.missing([known[0], "nobody", known[2], "none", "nobody"]) == ["nobody", "none"]
    with pytest.raises(DataError, match=r"no passage with the id 'nobody' \(2 missing\)"):
        found.score_pool(["x"], ["p1", "nobody", "none", "p2"])
    with pytest.raises(ConfigError, match="k: expected at least 1, got 0"):
        found.search(["x"], 0)
    for values, message in (
        ({"k1": -1}, "k1: expected at least 0"),
        ({"b": 1.5}, "b: expected 0 to 1"),
        ({"shard_size": 0}, "shard_size: expected at least 1"),
        ({"stemmer": "klingon"}, "stemmer: expected none or one of arabic"),
        ({"stop_words": "many"}, "stop_words: expected none, english or a list, got 'many'"),
    ):
        with pytest.raises(ConfigError, match=message):
            Bm25Config(**values)
    with pytest.raises(DataError, match="no index here"):
        PLAIN.open(tmp_path)
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(DataError, match=r"empty\.jsonl: holds no passage"):
        PLAIN.build(str(tmp_path / "empty.jsonl"), tmp_path / "index")
    assert not (tmp_path / "index").exists()


def test_an_index_is_opened_and_continued_with_its_own_settings_only(tmp_path: Path) -> None:
    passages = {"a": "one two", "b": "two three"}
    config = Bm25Config(stemmer="none", stop_words=("one",), k1=0.9)
    index(tmp_path / "index", passages, config)
    for other, told in (
        (replace(config, k1=0.82), r"k1 0\.9, here 0\.82"),
        (replace(config, stemmer="english"), "stemmer 'none', here 'english'"),
        (replace(config, stop_words="english"), r"stop_words \['one'\], here 'english'"),
    ):
        for act in (other.open, lambda path, other=other: other.build(str(tmp_path / "index.jsonl"), path)):
            with pytest.raises(ConfigError, match=f"built with other settings \\({told}\\)"):
                act(tmp_path / "index")
    with pytest.raises(ConfigError, match=r"another corpus \(2 passages, this one has 1\)"):
        config.build(str(write_corpus(tmp_path / "other.jsonl", {"a": "one"})), tmp_path / "index")
    with pytest.raises(ConfigError, match="holds files that are not those of an index"):
        config.build(str(tmp_path / "index.jsonl"), tmp_path)
    recorded = RecordedConfig().open(tmp_path / "index")
    assert recorded.search(["one three"], 5) == config.open(tmp_path / "index").search(["three"], 5) != [[]]
    with pytest.raises(ConfigError, match="retriever: name one"):
        RecordedConfig().build("x", tmp_path)


def test_passages_without_words(tmp_path: Path) -> None:
    """A shard of blank passages, a corpus of them, and stop words only."""
    found = index(tmp_path / "some", {"a": "", "b": "!", "c": "word"}, replace(PLAIN, shard_size=2))
    assert [hit.id for hit in found.search(["word"], 3)[0]] == ["c"]
    none = index(tmp_path / "none", {"a": "", "b": "?"})
    assert none.search(["word", ""], 3) == [[], []] and not none.score_pool(["word"], ["b", "a"]).any()


def test_words() -> None:
    assert WordConfig("none", "none").terms("The Ships, sailing—ÉTÉ 2.5!") == [
        *("the", "ships", "sailing", "été", "2", "5"),
    ]
    assert WordConfig("porter", "english").terms("The ships of sailing") == ["ship", "sail"]
    assert WordConfig("porter", "english").terms("Pinhead's and the sailors’ don't: us, s") == [
        "pinhead",
        "sailor",
        "don't",
        "us",
        "s",
    ]
    assert WordConfig("none", ["Ships"]).terms("the ships sailing") == ["the", "sailing"]


def test_stems_and_titles_are_found(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text('{"id": "a", "title": "Ships", "text": "they sail"}\n{"id": "b", "text": "x"}\n')
    config = Bm25Config()
    config.build(str(tmp_path / "c.jsonl"), tmp_path / "index")
    assert [hit.id for hit in config.open(tmp_path / "index").search(["the shipping"], 5)[0]] == ["a"]


def test_string_tables_keep_strings_with_one_hash_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("finegrained_rlhf.retrieval.arrays.id_hash", lambda text: len(text))
    strings = ["one", "two", "ça", "", "seven"]
    save_arrays(tmp_path / "t.safetensors", string_arrays(strings))
    table = StringTable(open_arrays(tmp_path / "t.safetensors"))
    assert [table[i] for i in range(len(table))] == strings
    assert table.find([*strings, "six", "eleven"]).tolist() == [0, 1, 2, 3, 4, -1, -1]


# Builds that are stopped ----------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from finegrained_rlhf.retrieval.bm25 import sharded
from finegrained_rlhf.retrieval.bm25.retriever import Bm25Config
real, left = getattr(sharded, sys.argv[1]), [int(sys.argv[2])]
def stop(*args):
    left[0] -= 1
    if left[0] < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args)
setattr(sharded, sys.argv[1], stop)
Bm25Config(stemmer="porter", stop_words="none", shard_size=40).build(sys.argv[3], sys.argv[4])
"""


@pytest.mark.parametrize(
    ("function", "calls", "shards"), [("_write_shard", 3, 3), ("_weigh", 2, 8), ("save_arrays", 4, 4)]
)
def test_a_killed_build_goes_on(tmp_path: Path, function: str, calls: int, shards: int) -> None:
    passages = random_passages(300)
    config = Bm25Config(stemmer="porter", stop_words="none", shard_size=40)
    whole = index(tmp_path / "whole", passages, config)
    corpus = tmp_path / "whole.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", KILLED, function, str(calls), str(corpus), str(tmp_path / "index")],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    finished = sorted((tmp_path / "index/shards").glob("0*"))
    assert len(finished) == shards
    with pytest.raises(DataError, match="the index is not finished"):
        config.open(tmp_path / "index")
    before = {path: path.stat().st_ino for path in finished}
    config.build(str(corpus), tmp_path / "index")
    assert {path: path.stat().st_ino for path in finished} == before  # finished shards were not made again
    assert not list((tmp_path / "index").rglob(".*"))  # nothing half-written is left
    again = config.open(tmp_path / "index")
    queries = random_queries(20)
    assert again.search(queries, 20) == whole.search(queries, 20)
    for path in (tmp_path / "whole").rglob("*.np[yz]"):
        assert path.read_bytes() == (tmp_path / "index" / path.relative_to(tmp_path / "whole")).read_bytes()


def test_a_finished_index_is_left_alone_and_a_damaged_one_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passages = random_passages(30)
    index(tmp_path / "index", passages)
    with monkeypatch.context() as patch:
        patch.setattr(sharded, "_count", lambda *_: pytest.fail("counted again"))
        PLAIN.build(str(tmp_path / "index.jsonl"), tmp_path / "index")
    counts = tmp_path / "index/shards/00000/counts.safetensors"
    counts.write_bytes(counts.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"counts\.safetensors: damaged \(it is cut off\); build the index again"):
        PLAIN.open(tmp_path / "index")
    counts.unlink()
    with pytest.raises(DataError, match=r"counts\.safetensors: no such file; build the index again"):
        PLAIN.open(tmp_path / "index")
    shutil.rmtree(tmp_path / "index/shards")
    with pytest.raises(DataError, match="has 0 shards, expected 1; build the index again"):
        PLAIN.open(tmp_path / "index")
