"""A store of passages: what a corpus holds, found by id, whatever its format; and stores that belong elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.retrieval import corpus as corpora
from finegrained_rlhf.retrieval import passages as stores
from finegrained_rlhf.retrieval.corpus import Corpus
from finegrained_rlhf.retrieval.passages import PassageStore, build_store

NAMES = [f"Types of cheese:{i}" for i in range(40)] + ["Käse: 🧀:0", "a b:1"]


def write_lines(path: Path, names: list[str], blank_every: int = 7) -> None:
    with path.open("w", encoding="utf-8") as file:
        for number, name in enumerate(names):
            row = {"id": name, "text": f"Text of\n{name}, 🧀 {'x' * (number % 13)}", "title": f"T{number}"}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            if number % blank_every == 0:
                file.write("\n")


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    """Two files of JSON lines, one of tab-separated values, and one of DPR's with a header and quotes."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    write_lines(folder / "a.jsonl", NAMES[:20])
    write_lines(folder / "b.jsonl", NAMES[20:])
    (folder / "c.tsv").write_text("plain 1\tSome text\tTitle\nplain 2\tOther\n", encoding="utf-8")
    (folder / "d.tsv").write_text('id\ttext\ttitle\nq 1\t"He said ""no"""\tT\nq 2\t"x"\tT\n', encoding="utf-8")
    return Corpus(folder)


def test_every_passage_is_found_by_its_id_as_the_corpus_has_it(corpus: Corpus, tmp_path: Path) -> None:
    store = build_store(corpus, tmp_path / "store", progress=False)
    passages = {passage.id: passage for passage in corpus}
    assert len(store) == len(passages) == 46 and store.fingerprint == corpus.scan(progress=False).fingerprint
    assert store.find(sorted(passages)) == {name: passages[name] for name in sorted(passages)}
    assert list(store.find(["q 2", "a b:1"])) == ["q 2", "a b:1"]
    assert "q 1" in store and "q 3" not in store and 3 not in store
    assert store.find(["q 1"])["q 1"].text == 'He said "no"' and "\n" in store.find(NAMES[:1])[NAMES[0]].text
    with pytest.raises(DataError, match="no passage with the id 'q 3'"):
        store.find(["q 1", "q 3"])
    again = PassageStore(tmp_path / "store", Corpus(corpus.path))
    assert again.find(NAMES) == {name: passages[name] for name in NAMES}


def test_sixteen_bytes_a_passage_lie_on_the_disk_and_are_mapped(corpus: Corpus, tmp_path: Path) -> None:
    store = build_store(corpus, tmp_path / "store", progress=False)
    arrays = [np.load(tmp_path / "store" / name) for name in ("hashes.npy", "places.npy")]
    assert sum(one.nbytes for one in arrays) == 16 * len(store)
    assert isinstance(store._hashes, np.memmap) and isinstance(store._places, np.memmap)


def test_ids_with_one_hash_are_told_apart(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (corpora, stores):
        monkeypatch.setattr(module, "id_hash", lambda text: len(text) % 2)
    monkeypatch.setattr(Corpus, "_report_duplicate", lambda self, suspects: None)
    store = build_store(corpus, tmp_path / "store", progress=False)
    assert {name: store.find([name])[name].id for name in NAMES} == {name: name for name in NAMES}
    assert "Types of cheese:99" not in store


def test_a_store_of_another_corpus_is_refused(corpus: Corpus, tmp_path: Path) -> None:
    build_store(corpus, tmp_path / "store", progress=False)
    with pytest.raises(DataError, match="is there already"):
        build_store(corpus, tmp_path / "store", progress=False)
    other = tmp_path / "other.jsonl"
    write_lines(other, NAMES[:5])
    with pytest.raises(DataError, match="is a store of another corpus than .*other.jsonl; build it anew"):
        PassageStore(tmp_path / "store", Corpus(other))
    copy = tmp_path / "copy"
    copy.mkdir()
    for part in corpus.parts:  # the same bytes elsewhere
        (copy / part.name).write_bytes(part.read_bytes())
    assert len(PassageStore(tmp_path / "store", Corpus(copy))) == 46


def test_a_store_that_is_none_or_is_damaged(corpus: Corpus, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        PassageStore(tmp_path / "none", corpus)
    build_store(corpus, tmp_path / "store", progress=False)
    np.save(tmp_path / "store" / "places.npy", np.zeros(3, np.uint64))
    with pytest.raises(DataError, match="the store is damaged: expected 46 passages"):
        PassageStore(tmp_path / "store", corpus)
    (tmp_path / "store" / "hashes.npy").write_bytes(b"no array")
    with pytest.raises(DataError, match="the store is damaged"):
        PassageStore(tmp_path / "store", corpus)
    (tmp_path / "store" / "store.json").write_text("{}")
    with pytest.raises(DataError, match="expected a passage store of format"):
        PassageStore(tmp_path / "store", corpus)


def test_an_empty_or_ambiguous_corpus_has_no_store(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(DataError, match="holds no passage"):
        build_store(Corpus(tmp_path / "empty.jsonl"), tmp_path / "store", progress=False)
    write_lines(tmp_path / "twice.jsonl", ["a", "b", "a"])
    with pytest.raises(DataError, match="'a' is also the id of"):
        build_store(Corpus(tmp_path / "twice.jsonl"), tmp_path / "store", progress=False)
    assert not (tmp_path / "store").exists()
