"""Forms of corpora's files: ours, BEIR's, Pyserini's and DPR's, plain and compressed, and files that mix them."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.retrieval.bm25.retriever import Bm25Config
from finegrained_rlhf.retrieval.corpus import Corpus
from finegrained_rlhf.retrieval.passages import PassageStore, build_store

EXPECTED = [Passage.uncut("a", "x y", "T"), Passage.uncut("ç", 'say "so"', "Ü"), Passage.uncut("c", "z")]
DPR = 'id\ttext\ttitle\na\t"x y"\tT\nç\t"say ""so"""\tÜ\nc\t"z"\t\n'


def rows(form: str) -> list[dict[str, object]]:
    if form == "beir":
        return [{"_id": p.id, "title": p.title, "text": p.text, "metadata": {"url": "u"}} for p in EXPECTED]
    if form == "pyserini":
        return [{"id": p.id, "contents": f"{p.title}\n{p.text}" if p.title else p.text} for p in EXPECTED]
    return [{"id": p.id, "text": p.text, "title": p.title, "contents": "not read"} for p in EXPECTED]


def contents(form: str) -> str:
    if form == "dpr":
        return DPR
    if form == "tsv":
        return "".join(f"{p.id}\t{p.text}\t{p.title}\n" for p in EXPECTED)
    return "\n" + "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows(form))


def save(folder: Path, form: str, compressed: bool = False) -> Path:
    path = folder / f"{form}.{'tsv' if form in ('dpr', 'tsv') else 'jsonl'}"
    path.write_text(contents(form), encoding="utf-8")
    return packed(path) if compressed else path


def packed(path: Path) -> Path:
    target = path.with_name(f"{path.name}.gz")
    target.write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    path.unlink()
    return target


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("form", ["ours", "beir", "pyserini", "dpr", "tsv"])
def test_every_form_says_the_same_and_can_be_taken_up_anywhere(tmp_path: Path, form: str, compressed: bool) -> None:
    corpus = Corpus(save(tmp_path, form, compressed))
    read = list(corpus.read())
    assert [passage for passage, _ in read] == EXPECTED and corpus.scan().passages == 3
    assert len(corpus.compressed) == compressed
    for number, (_, after) in enumerate(read, 1):
        assert [passage for passage, _ in Corpus(corpus.path).read(after)] == EXPECTED[number:]
    assert corpus.find(["c"]) == {"c": EXPECTED[2]}


def test_a_directory_may_hold_files_of_different_forms(tmp_path: Path) -> None:
    for number, (form, compressed) in enumerate((("beir", True), ("pyserini", False), ("dpr", True))):
        path = save(tmp_path, form, compressed)
        path.rename(tmp_path / f"{number}{''.join(path.suffixes)}")
    assert [passage.id for passage in Corpus(tmp_path)] == ["a", "ç", "c"] * 3
    with pytest.raises(DataError, match=r"1\.jsonl:2, field id: 'a' is also the id of .*0\.jsonl\.gz:2"):
        Corpus(tmp_path).scan(progress=False)


@pytest.mark.parametrize(
    ("contents", "title", "text"),
    [
        ("One line", "", "One line"),
        ("One line\n", "", "One line\n"),
        ("\nNo title\nmore", "", "No title\nmore"),
        ("Title \nfirst\nsecond", "Title", "first\nsecond"),
        ("", "", ""),
    ],
)
def test_the_title_of_pyserinis_contents(tmp_path: Path, contents: str, title: str, text: str) -> None:
    (tmp_path / "c.jsonl").write_text(json.dumps({"id": "a", "contents": contents}))
    assert list(Corpus(tmp_path)) == [Passage.uncut("a", text, title)]


@pytest.mark.parametrize(
    ("row", "title"),
    [
        ({"title": "Goat", "sub_title": "Milk and cheese"}, "Goat [SEP] Milk and cheese"),
        ({"title": "Goat", "sub_title": None}, "Goat"),
        ({"title": "Goat", "sub_title": " "}, "Goat"),
        ({"title": "", "sub_title": "Milk and cheese"}, "Milk and cheese"),
    ],
)
def test_the_section_follows_the_title_as_in_topiocqas_gold_titles(
    row: dict[str, object], title: str, tmp_path: Path
) -> None:
    (tmp_path / "c.jsonl").write_text(json.dumps({"id": "1", **row, "contents": "Of milk.\nAnd more."}))
    assert list(Corpus(tmp_path)) == [Passage.uncut("1", "Of milk.\nAnd more.", title)]


def test_a_section_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text(json.dumps({"id": "1", "title": "Goat", "sub_title": 3, "contents": "x"}))
    with pytest.raises(DataError, match=r"c\.jsonl:1, field sub_title: expected a string or nothing, got int"):
        list(Corpus(tmp_path))


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (
            {"_id": "a", "text": ""},
            {"id": "b", "text": ""},
            r"first line has the form \{\"_id\", \"text\"\} \(BEIR's\), this one \{\"id\", \"text\"\} \(ours\)",
        ),
        (
            {"id": "a", "text": ""},
            {"id": "b", "contents": ""},
            r"\(ours\), this one .*\(Pyserini's\); expected one form",
        ),
        ({"id": "a", "contents": ""}, {"_id": "b", "text": ""}, r"\(Pyserini's\), this one .*\(BEIR's\)"),
        ({"_id": "a", "text": ""}, {"_id": "b"}, "field text: expected a string, it is missing"),
        ({"_id": "a", "text": ""}, {"_id": 3, "text": ""}, "field _id: expected a string, got int"),
        ({"_id": "a", "text": ""}, {"_id": " ", "text": ""}, "field _id: expected an id, got blank text"),
        ({"_id": "a", "text": ""}, {"text": ""}, "field _id: expected a string, it is missing"),
        ({"id": "a", "contents": ""}, {"id": "b", "contents": ["x"]}, "field contents: expected a string, got list"),
    ],
)
def test_a_line_of_another_form_is_one_error(tmp_path: Path, first: object, second: object, message: str) -> None:
    (tmp_path / "c.jsonl").write_text(f"{json.dumps(first)}\n{json.dumps(second)}\n")
    with pytest.raises(DataError, match=rf"c\.jsonl:2.*{message}"):
        Corpus(tmp_path).scan(progress=False)


def test_damaged_files_of_gzip(tmp_path: Path) -> None:
    whole = save(tmp_path, "beir", compressed=True)
    damaged = tmp_path / "damaged.jsonl.gz"
    for data in (b"no gzip at all", whole.read_bytes()[:-12], whole.read_bytes()[:40] + b"~~~~" * 20):
        damaged.write_bytes(data)
        with pytest.raises(DataError, match=r"damaged\.jsonl\.gz: not a whole file of gzip"):
            Corpus(damaged).scan(progress=False)
    damaged.write_bytes(b"")
    with pytest.raises(DataError, match="holds no passage"):
        Corpus(damaged).scan(progress=False)


def test_look_ups_want_plain_files(tmp_path: Path) -> None:
    corpus = Corpus(save(tmp_path, "beir"))
    store = build_store(corpus, tmp_path / "store", progress=False)
    assert list(store.find(["ç", "a"]).values()) == [EXPECTED[1], EXPECTED[0]]
    compressed = Corpus(packed(corpus.path))
    for refuse in (
        lambda: build_store(compressed, tmp_path / "other", progress=False),
        lambda: PassageStore(tmp_path / "store", compressed),
    ):
        with pytest.raises(DataError, match=r"beir\.jsonl\.gz: is compressed, .* unpack it \(gunzip\) first"):
            refuse()
    assert not (tmp_path / "other").exists()


def test_an_index_of_a_compressed_corpus_finds_the_same(tmp_path: Path) -> None:
    plain = save(tmp_path, "pyserini")
    copy = tmp_path / "copy.jsonl"
    shutil.copy(plain, copy)
    found = []
    for corpus, name in ((plain, "plain"), (packed(copy), "packed")):
        config = Bm25Config(shard_size=2)
        config.build(str(corpus), tmp_path / name)
        found.append(config.open(tmp_path / name).search(["say so", "z", "T"], 3))
    assert found[0] == found[1] and [hits[0].id for hits in found[0]] == ["ç", "c", "a"]
