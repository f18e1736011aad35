"""Reading a folder of documents: formats, places, what changed, what is left out."""

from __future__ import annotations

from pathlib import Path

import pytest
from hostile_documents import MARKER, docx, make_hostile, paragraph, pdf

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.inscit.documents.folder import DocumentIndex, FolderConfig, update_index
from finegrained_rlhf.inscit.documents.passages import cut_document
from finegrained_rlhf.inscit.documents.readers import read_document
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
    assert opened.source("d.md") == "The third fact.\n" and len(list((index / "passages").iterdir())) == 1
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
        with pytest.raises(DataError, match="longer than 0.2 seconds"):
            reading.read("a.html", b"<p>" * 3_000_000)
        reading._seconds = 60.0
        assert reading.read("a.txt", b"words").text == "words"
