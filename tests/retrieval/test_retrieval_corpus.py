"""Corpora on disk: two formats, places to go on from, and errors that say where."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.retrieval import corpus as corpus_module
from finegrained_rlhf.retrieval.corpus import Corpus, CorpusScan


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def passage(id: object, text: object = "text", **more: object) -> dict[str, object]:
    return {"id": id, "text": text, **more}


def test_the_two_formats_say_the_same(tmp_path: Path) -> None:
    jsonl = write(tmp_path / "a.jsonl", passage("a", "x y"), passage("b", 'say "so"', title="T"), passage("ç", ""))
    (tmp_path / "a.tsv").write_text('a\tx y\nb\tsay "so"\tT\r\n\nç\t\t\n', encoding="utf-8")
    (tmp_path / "dpr.tsv").write_text('id\ttext\ttitle\na\t"x y"\t\nb\t"say ""so"""\tT\nç\t""\t""\n', encoding="utf-8")
    expected = [Passage.uncut("a", "x y"), Passage.uncut("b", 'say "so"', "T"), Passage.uncut("ç", "")]
    for path in (jsonl, tmp_path / "a.tsv", tmp_path / "dpr.tsv"):
        assert list(Corpus(path)) == expected
    assert [item.contents for item in expected] == ["x y", 'T say "so"', ""]


def test_a_directory_is_read_in_the_order_of_names_and_can_be_taken_up_anywhere(tmp_path: Path) -> None:
    for name, ids in (("2.jsonl", "efg"), ("1.jsonl", "abc"), ("1b.tsv", "d")):
        path = tmp_path / name
        if path.suffix == ".jsonl":
            write(path, *map(passage, ids))
        else:
            path.write_text("".join(f"{id}\tt\n\n" for id in ids))
    (tmp_path / "notes.txt").write_text("not read")
    corpus = Corpus(tmp_path)
    read = list(corpus.read())
    assert "".join(item.id for item, _ in read) == "abcdefg"
    for number, (_, after) in enumerate(read, 1):
        assert [item.id for item, _ in corpus.read(after)] == list("abcdefg")[number:]
    blocks = list(corpus.blocks(3))
    assert ["".join(item.id for item in block) for block, _ in blocks] == ["abc", "def", "g"]
    assert [len(block) for block, _ in corpus.blocks(3, blocks[0][1])] == [3, 1]
    assert corpus.find(["f", "a"]) == {id: Passage.uncut(id, "text") for id in "fa"}
    with pytest.raises(DataError, match=r"no passage with the id 'x' \(2 missing\)"):
        corpus.find(["a", "y", "x"])


def test_a_directory_without_files_is_read_with_all_its_folders(tmp_path: Path) -> None:
    """As QReCC's passages lie; files of the same name in two folders are told apart when a scan is taken up again."""
    for name, id in (("wayback", "c"), ("commoncrawl", "a"), ("wayback-backfill/deeper", "b")):
        (tmp_path / name).mkdir(parents=True)
        write(tmp_path / name / "part-00.jsonl", {"id": id, "contents": "A page.\nIts text."})
    corpus = Corpus(tmp_path)
    assert {item.id: (item.title, item.text) for item in corpus} == dict.fromkeys("abc", ("A page.", "Its text."))
    names = ["commoncrawl/part-00.jsonl", "wayback/part-00.jsonl", "wayback-backfill/deeper/part-00.jsonl"]
    scan = corpus.scan(progress=False)
    assert sorted(name for name, _, _ in scan.files) == sorted(names)
    assert Corpus(tmp_path).scan(scan, progress=False) is scan
    write(tmp_path / "top.jsonl", passage("d"))
    assert [item.id for item in Corpus(tmp_path)] == ["d"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"id": "b"}', r"c\.jsonl:3, field text: expected a string, it is missing"),
        ('{"id": 3, "text": ""}', r"c\.jsonl:3, field id: expected a string, got int"),
        ('{"id": "b", "text": "", "title": [1]}', r"c\.jsonl:3, field title: expected a string or nothing, got list"),
        ('{"id": " ", "text": ""}', r"c\.jsonl:3, field id: expected an id, got blank text ' '"),
        ('{"id": "a\\ud800", "text": ""}', r"c\.jsonl:3, field id: expected an id, got 'a.*half a surrogate pair"),
        ('{"id": "", "text": ""}', r"c\.jsonl:3, field id: expected an id, got blank text ''"),
        ('{"id": "b", "te', r"c\.jsonl:3: not valid JSON .* is the file truncated"),
        ('["b"]', r"c\.jsonl:3: expected a JSON object, got list"),
    ],
)
def test_errors_name_file_line_and_field(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text(f'{{"id": "a", "text": ""}}\n\n{text}\n')
    with pytest.raises(DataError, match=message):
        Corpus(path).scan(progress=False)


def test_errors_of_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        Corpus(tmp_path / "none.jsonl")
    (tmp_path / "c.txt").write_text("")
    with pytest.raises(DataError, match=r"expected a name that ends in \.jsonl, \.tsv, \.jsonl\.gz or \.tsv\.gz"):
        Corpus(tmp_path / "c.txt")
    with pytest.raises(DataError, match=r"holds no \.jsonl, \.tsv, \.jsonl\.gz or \.tsv\.gz file"):
        Corpus(tmp_path)
    (tmp_path / "c.tsv").write_text("a\tb\tc\td\n")
    with pytest.raises(DataError, match=r"c\.tsv:1: expected id, text and perhaps title, separated by tabs, got 4"):
        list(Corpus(tmp_path / "c.tsv"))
    (tmp_path / "c.tsv").write_bytes(b"a\tb\nb\t\xff\n")
    with pytest.raises(DataError, match=r"c\.tsv:2: not UTF-8 text \(invalid start byte at byte 2"):
        list(Corpus(tmp_path / "c.tsv"))
    for blank in ("", "\n \n"):
        (tmp_path / "c.tsv").write_text(blank)
        with pytest.raises(DataError, match="holds no passage, expected at least one"):
            Corpus(tmp_path).scan(progress=False)


def test_an_id_that_occurs_twice_is_named_with_both_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "1.jsonl", *map(passage, "abc"))
    write(tmp_path / "2.jsonl", *map(passage, "deb"))
    with pytest.raises(DataError, match=r"2\.jsonl:3, field id: 'b' is also the id of .*1\.jsonl:2"):
        Corpus(tmp_path).scan(progress=False)
    write(tmp_path / "2.jsonl", *map(passage, "de"))
    monkeypatch.setattr(corpus_module, "id_hash", lambda text: 7)  # equal hashes of different ids are no duplicates
    assert Corpus(tmp_path).scan(progress=False).passages == 5


def test_a_scan_is_believed_while_the_files_have_not_changed(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", passage("a"), passage("b"))
    scan = Corpus(path).scan(progress=False)
    assert scan == CorpusScan.from_json(json.loads(json.dumps(scan.to_json()))) and scan.passages == 2
    known = CorpusScan(99, "known", scan.files)
    assert Corpus(path).scan(known, progress=False) is known
    os.utime(path, ns=(1, 1))
    again = Corpus(path).scan(known, progress=False)
    assert again.passages == 2 and again.fingerprint == scan.fingerprint
    write(path, passage("a"), passage("c"))
    assert Corpus(path).scan(progress=False).fingerprint != scan.fingerprint
