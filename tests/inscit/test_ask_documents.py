"""Reading a folder of documents: formats, places, what changed, what is left out."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
from hostile_documents import MARKER, docx, make_hostile, paragraph, pdf

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.inscit.documents.folder import DocumentIndex, FolderConfig, update_index
from finegrained_rlhf.inscit.documents.passages import cut_document
from finegrained_rlhf.inscit.documents.readers import NotNow, read_document
from finegrained_rlhf.inscit.documents.reading import ReadingProcess
from finegrained_rlhf.retrieval.bm25.retriever import Bm25Config

CONFIG = FolderConfig({"bm25": Bm25Config()}, seconds=20.0)


def blocks(name: str, data: bytes) -> list[tuple[str, int]]:
    document = read_document(name, data)
    return [(document.text[one.start : one.end], one.level) for one in document.blocks]


MARKDOWN = b"""---
title: "Front"
---

Set
===

One *first* line
and a second.

- item
  - inner
1. [x] done

| a | b |
|---|---|
| 1 | 2 |

> quoted

```py
# no heading
```

## Closed ##

    code
"""


def test_blocks_of_markdown() -> None:
    assert blocks("a.md", MARKDOWN) == [
        ("Set", 1),
        ("One *first* line\nand a second.", 0),
        ("item", 0),
        ("inner", 0),
        ("done", 0),
        ("| a | b |", 0),
        ("| 1 | 2 |", 0),
        ("quoted", 0),
        ("# no heading", 0),
        ("Closed", 2),
        ("code", 0),
    ]
    assert read_document("a.md", MARKDOWN).title == "Front"


def test_places_are_those_of_the_file_as_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "a.md"
    file.write_bytes("# Tür\r\n\r\nEin Satz. Noch 🧨 einer.\r\n\r\nEnd.".encode())
    passages = cut_document(read_document(file.name, file.read_bytes()), file.name)
    text = file.read_text(encoding="utf-8")
    assert [text[a:b] for one in passages for a, b in one.sentences] == ["Ein Satz.", "Noch 🧨 einer.", "End."]
    assert [one.titles for one in passages] == [("Tür",)] and text[passages[0].start : passages[0].end] == passages[
        0
    ].text


HTML = (
    b"<html><head><title>T  t</title><style>p{}</style></head><body>Before <b>bo</b>ld<h1>Top</h1><p>A<i>b</i>c.</p>"
    b"<script>no()</script><ul><li>x<ul><li>y</li></ul></li></ul><table><tr><td>1</td><td>2</td></tr></table></body></html>"
)


def test_blocks_of_html() -> None:
    found = blocks("a.html", HTML)
    assert found == [("Before bold", 0), ("Top", 1), ("Abc.", 0), ("x", 0), ("y", 0), ("1 | 2", 0)]
    assert read_document("a.html", HTML).title == "T t"


@pytest.mark.needs("pypdf")
def test_text_of_a_pdf() -> None:
    assert blocks("a.pdf", pdf(b"BT /F1 12 Tf 10 100 Td (The tower is tall.) Tj ET")) == [("The tower is tall.", 0)]
    with pytest.raises(DataError, match="encrypted"):
        read_document("a.pdf", pdf(b"", b"/Encrypt << /Filter /Standard /V 1 /R 2 /O (o) /U (u) /P -4 >> "))


@pytest.mark.needs("docx")
def test_text_of_a_docx() -> None:
    assert blocks("a.docx", docx(paragraph("One.") + paragraph(" ") + paragraph("Two."))) == [("One.", 0), ("Two.", 0)]


def test_long_passages_are_cut_behind_sentences_and_endless_ones_anywhere() -> None:
    text = "This has just five words. " * 100
    passages = cut_document(read_document("a.txt", text.encode()), "a.txt", words=50)
    assert [len(one.text.split()) for one in passages] == [50] * 10
    endless = cut_document(read_document("a.txt", b"x" * 10_000), "a.txt")
    assert "".join(one.sentence(span) for one in endless for span in one.sentences) == "x" * 10_000
    assert max(end - start for one in endless for start, end in one.sentences) <= 1_500


def test_only_what_changed_is_read_again(tmp_path: Path) -> None:
    docs, index = tmp_path / "docs", tmp_path / "index"
    (docs / "in").mkdir(parents=True)
    (docs / "a.md").write_text("# One\n\nThe first fact.\n")
    (docs / "in/b.txt").write_text("The second fact.\n")
    (docs / "c.png").write_bytes(b"")
    report = update_index(docs, index, CONFIG, progress=False)
    assert (report.files, report.read, report.passages, report.other) == (2, 2, 2, {".png": 1})
    assert update_index(docs, index, CONFIG, progress=False).read == 0
    (docs / "a.md").write_text("# One\n\nThe first fact, mended.\n")
    (docs / "d.md").write_text("The third fact.\n")
    (docs / "in/b.txt").unlink()
    report = update_index(docs, index, CONFIG, progress=False)
    assert (report.files, report.read) == (2, 2)
    opened = DocumentIndex(index, CONFIG)
    assert [one.text for one in opened.passages()] == ["The first fact, mended.", "The third fact."]
    assert [hit.id for hit in opened.retrievers()["bm25"].search(["mended"], 5)[0]] == ["a.md#0"]
    assert opened.source("d.md") == "The third fact.\n" and len(list((index / "passages").iterdir())) == 2
    with pytest.raises(ConfigError, match="is the index of"):
        update_index(tmp_path, index, CONFIG, progress=False)
    with pytest.raises(ConfigError, match="something else"):
        update_index(docs, docs, CONFIG, progress=False)


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such directory"):
        update_index(tmp_path / "docs", tmp_path / "index", CONFIG, progress=False)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/a.md").write_bytes(b"\xff")
    with pytest.raises(DataError, match="no document that can be read; a.md: is not text in UTF-8"):
        update_index(tmp_path / "docs", tmp_path / "index", CONFIG, progress=False)


def test_broken_and_hostile_files_are_a_line_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outside = tmp_path / "outside/secret.md"
    outside.parent.mkdir()
    outside.write_text("The secret is kept.\n")
    docs = tmp_path / "docs"
    docs.mkdir()
    entries = make_hostile(docs, tmp_path / MARKER, outside)
    report = update_index(docs, tmp_path / "index", CONFIG, progress=False)
    left = {one.file: one.problem for one in report.left}
    assert report.files + len(left) + 2 == entries  # a directory, and a link to one
    assert all("\n" not in line for line in report.lines())
    assert {"link.md", "loop.md", "gone.md", "pipe.md", "empty.md", "binary.md", "bomb.docx", "encrypted.pdf"} <= set(
        left
    )
    assert "link out of the folder" in left["link.md"]
    texts = [one.text for one in DocumentIndex(tmp_path / "index", CONFIG).passages()]
    assert not any("secret" in text or "alert(1)" in text and "app" in text for text in texts)
    assert "The bridge of Utf was opened in 1921." in texts and "The gate is red." in texts
    assert not list(tmp_path.rglob(MARKER))


def test_a_file_that_takes_too_long_costs_itself_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with ReadingProcess(0.2) as reading:
        with pytest.raises(NotNow, match="longer than 0.2 seconds"):
            reading.read("a.html", b"<p>" * 3_000_000)
        reading._seconds = 60.0
        assert reading.read("a.txt", b"words").text == "words"


def folder_of(tmp_path: Path, **files: str) -> tuple[Path, Path]:
    """A folder of Markdown files, and where its index goes."""
    docs = tmp_path / "docs"
    docs.mkdir()
    for name, text in files.items():
        (docs / f"{name}.md").write_text(text)
    return docs, tmp_path / "index"


def test_a_file_changed_with_its_size_and_time_kept_is_read_again(tmp_path: Path) -> None:
    docs, index = folder_of(tmp_path, a="It leaves at 6:40.\n")
    update_index(docs, index, CONFIG, progress=False)
    times = (docs / "a.md").stat()
    (docs / "a.md").write_text("It leaves at 9:15.\n")
    os.utime(docs / "a.md", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert update_index(docs, index, CONFIG, progress=False).read == 1
    assert [one.text for one in DocumentIndex(index, CONFIG).passages()] == ["It leaves at 9:15."]


def test_a_file_that_could_not_be_read_for_another_reason_than_its_content_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs, index = folder_of(tmp_path, a="One.\n", b="Two.\n")
    real = Path.read_bytes

    def denied(path: Path) -> bytes:
        if path.name == "a.md":
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", denied)
    report = update_index(docs, index, CONFIG, progress=False)
    assert [one.file for one in report.left] == ["a.md"] and (report.files, report.read) == (1, 1)
    monkeypatch.setattr(Path, "read_bytes", real)
    report = update_index(docs, index, CONFIG, progress=False)
    assert (report.left, report.files, report.read) == ((), 2, 1)


def test_what_is_below_a_directory_that_cannot_be_read_stays_in_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs, index = folder_of(tmp_path, a="One.\n")
    (docs / "in").mkdir()
    (docs / "in/b.md").write_text("Two.\n")
    update_index(docs, index, CONFIG, progress=False)
    real = os.scandir

    def denied(path: str) -> object:
        if Path(path).name == "in":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", denied)
    report = update_index(docs, index, CONFIG, progress=False)
    assert [str(one) for one in report.left] == ["in: cannot be read (Permission denied)"]
    assert [one.file for one in DocumentIndex(index, CONFIG).passages()] == ["a.md", "in/b.md"]


def test_an_open_index_outlives_an_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it was open, or was being opened: its documents and retrievers are those that it was made of."""
    docs, index = folder_of(tmp_path, a="The first fact.\n")
    update_index(docs, index, CONFIG, progress=False)

    def updated(path: Path) -> object:
        record = json.loads(path.read_text())
        monkeypatch.undo()
        (docs / "a.md").write_text("The second fact, which is longer.\n")
        update_index(docs, index, CONFIG, progress=False)
        return record

    monkeypatch.setattr("finegrained_rlhf.inscit.documents.folder.read_json", updated)
    opened = DocumentIndex(index, CONFIG)
    assert opened.source("a.md") == "The first fact.\n" and list(opened.retrievers()) == ["bm25"]
    (docs / "a.md").write_text("The third fact, which is the longest.\n")
    update_index(docs, index, CONFIG, progress=False)
    with pytest.raises(DataError, match="is not in the index"):
        opened.source("a.md")


def test_an_index_that_two_updates_overtook_while_it_was_opened_is_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs, index = folder_of(tmp_path, a="The first fact.\n")
    update_index(docs, index, CONFIG, progress=False)

    def overtaken(path: Path) -> object:
        record = json.loads(path.read_text())
        monkeypatch.undo()
        for number in ("second", "third"):
            (docs / "a.md").write_text(f"The {number} fact, which is longer than {number}.\n")
            update_index(docs, index, CONFIG, progress=False)
        return record

    monkeypatch.setattr("finegrained_rlhf.inscit.documents.folder.read_json", overtaken)
    opened = DocumentIndex(index, CONFIG)
    assert opened.source("a.md").startswith("The third fact") and list(opened.retrievers()) == ["bm25"]


@pytest.mark.parametrize(
    ("name", "package"), [("a.md", "markdown_it"), ("a.html", "bs4"), ("a.pdf", "pypdf"), ("a.docx", "docx")]
)
def test_a_missing_package_is_no_fault_of_a_file(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(NotNow, match="pip install"):
        read_document(name, b"Words.")


def test_other_settings_of_a_retriever_make_the_index_anew_and_a_stopped_run_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs, index = folder_of(tmp_path, a="The first fact.\n")
    update_index(docs, index, CONFIG, progress=False)
    both = FolderConfig({"bm25": Bm25Config(k1=1.2), "more": Bm25Config()})

    def stopped(self: Bm25Config, corpus: str, directory: Path) -> None:
        directory.mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(Bm25Config, "build", stopped)
    with pytest.raises(KeyboardInterrupt):
        update_index(docs, index, both, progress=False)
    monkeypatch.undo()
    assert list(DocumentIndex(index, CONFIG).retrievers()) == ["bm25"]
    update_index(docs, index, both, progress=False)
    assert list(DocumentIndex(index, both).retrievers()) == ["bm25", "more"]


def test_an_index_of_another_version_is_made_anew(tmp_path: Path) -> None:
    docs, index = folder_of(tmp_path, a="The first fact.\n")
    update_index(docs, index, CONFIG, progress=False)
    with closing(sqlite3.connect(index / "documents.sqlite")) as base:
        base.executescript("PRAGMA user_version = 0; DROP TABLE before; UPDATE documents SET text = 'old';")
    report = update_index(docs, index, CONFIG, progress=False)
    assert report.read == 1 and "another version" in report.lines()[1]
    assert DocumentIndex(index, CONFIG).source("a.md") == "The first fact.\n"


@pytest.mark.parametrize("fingerprint", ["../../elsewhere/p", "/etc", "0" * 15, None, 7])
def test_the_record_of_an_index_names_no_path(tmp_path: Path, fingerprint: object) -> None:
    docs, index = folder_of(tmp_path, a="The first fact.\n")
    update_index(docs, index, CONFIG, progress=False)
    record = json.loads((index / "ask.json").read_text())
    (index / "ask.json").write_text(json.dumps({**record, "fingerprint": fingerprint}))
    with pytest.raises(DataError, match="fingerprint"):
        DocumentIndex(index, CONFIG)


def test_damaged_files_of_an_index_are_named(tmp_path: Path) -> None:
    docs, index = folder_of(tmp_path, a="The first fact.\n")
    update_index(docs, index, CONFIG, progress=False)
    (corpus,) = index.glob("passages/*/passages.jsonl")
    corpus.write_text("{}\n")
    with pytest.raises(DataError, match="damaged"):
        DocumentIndex(index, CONFIG)
    for file in index.glob("documents.sqlite*"):
        file.unlink()
    (index / "documents.sqlite").write_bytes(b"no database" * 1000)
    with pytest.raises(DataError, match="documents.sqlite: cannot be used"):
        update_index(docs, index, CONFIG, progress=False)
    with pytest.raises(ConfigError, match="is no directory"):
        update_index(docs, corpus, CONFIG, progress=False)
    with pytest.raises(DataError, match="is a file; expected a folder"):
        update_index(docs / "a.md", index, CONFIG, progress=False)


def test_a_folder_whose_name_is_not_utf8_has_an_index(tmp_path: Path) -> None:
    docs = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    docs.mkdir()
    (docs / "a\x1b[2J.md").write_text("The first fact.\n")
    (docs / "b\x1b.md").write_text("")
    for _ in range(2):
        report = update_index(docs, tmp_path / "index", CONFIG, progress=False)
    assert report.files == 1 and report.lines()[1] == "left out: b\\x1b.md: holds no text"


def test_html_without_its_optional_tags_or_within_a_form_is_read() -> None:
    page = b"<!DOCTYPE html><html><head><title>T</title><body><h1>Ferry</h1><p>It leaves."
    assert blocks("a.html", page) == [("Ferry", 1), ("It leaves.", 0)]
    assert read_document("a.html", page).title == "T"
    form = b"<form><p>It leaves.</p><select><option>Mon</select><textarea>x</textarea><button>Go</button></form>"
    assert blocks("a.html", form) == [("It leaves.", 0)]


def test_columns_of_tables_stay_where_cells_are_empty_or_equal() -> None:
    rows = b"<tr><td></td><th>Low</th></tr><tr><td>Mon</td><td> </td><td>8:00</td></tr><tr><td></td><td></td></tr>"
    unclosed = b"<tr><td>A<td>B<tr><td>C<td>D"
    assert blocks("a.html", b"<table>" + rows + unclosed) == [
        *(("| Low", 0), ("Mon | | 8:00", 0), ("A | B", 0), ("C | D", 0))
    ]


@pytest.mark.needs("docx")
def test_equal_cells_of_a_docx_stay() -> None:
    cells = "".join(f"<w:tc><w:p><w:r><w:t>{text}</w:t></w:r></w:p></w:tc>" for text in ("Adult", "5", "5"))
    assert blocks("a.docx", docx(f"<w:tbl><w:tr>{cells}</w:tr></w:tbl>")) == [("Adult | 5 | 5", 0)]


def test_text_between_two_rules_is_no_front_matter() -> None:
    assert blocks("a.md", b"---\n\nOne.\n\n---\n\nTwo.\n") == [("One.", 0), ("Two.", 0)]


def test_the_mark_of_utf8_hides_no_heading_and_moves_no_place() -> None:
    assert blocks("a.md", "\ufeff# Ferry\n\nIt leaves.\n".encode()) == [("Ferry", 1), ("It leaves.", 0)]
    front = read_document("a.md", "\ufeff---\ntitle: Ferry\n---\nIt leaves.\n".encode())
    assert front.title == "Ferry" and [front.text[one.start : one.end] for one in front.blocks] == ["It leaves."]
    with pytest.raises(DataError, match="holds no text"):
        read_document("a.txt", "\ufeff".encode())


def test_lines_of_code_that_look_like_fences_stay() -> None:
    fence = b"~~~~\n~~~ inner\n```python\nprint(1)\n```\n~~~~\n\n```\nopen\n~~~\n"
    assert [text for text, _ in blocks("a.md", fence)] == ["~~~ inner", "```python", "print(1)", "```", "open", "~~~"]


def test_a_heading_with_nothing_below_it_is_in_a_passage() -> None:
    text = b"# Ferry\n\n## Closed in winter\n\n## Times\n\nIt leaves.\n\n## No dogs\n"
    passages = cut_document(read_document("a.md", text), "a.md")
    assert [(one.titles, one.text) for one in passages] == [
        (("Ferry",), "Closed in winter"),
        (("Ferry", "Times"), "It leaves."),
        (("Ferry",), "No dogs"),
    ]
