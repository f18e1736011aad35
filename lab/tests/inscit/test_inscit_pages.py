"""Pages of Wikipedia as a corpus: what is written, a run that goes on, pages that are none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from script_runs import run_script

from finegrained_lab.published.inscit.pages import MakeCorpus, page_passages
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.retrieval.corpus import Corpus


def page(title: str, count: int = 2) -> dict[str, Any]:
    passages: list[dict[str, Any]] = [{"id": f"{title}:0", "titles": [], "text": "- History\n- Use"}]
    for i in range(1, count):
        passages.append({"id": f"{title}:{i}", "titles": [title, " Use "], "text": f"{title} is\nused. {i}"})
    return {"title": title, "passages": passages}


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    (tmp_path / "pages").mkdir()
    write_json(tmp_path / "pages" / "b.json", [page("Types of cheese", 3), page("Goat")])
    write_json(tmp_path / "pages" / "a.json", [page("Käse 🧀")])
    return tmp_path / "pages"


def test_a_corpus_of_pages_is_made_and_a_second_run_keeps_it(pages: Path, tmp_path: Path) -> None:
    target = tmp_path / "corpus"
    done = run_script("make_corpus", f"pages={pages}", f"output_dir={target}")
    assert done.returncode == 0 and "7 passages of 2 files" in done.stdout, done.stderr
    found = list(Corpus(target))
    assert [one.id for one in found][:3] == ["Käse 🧀:0", "Käse 🧀:1", "Types of cheese:0"]
    assert found[0] == Passage.uncut("Käse 🧀:0", "- History\n- Use")
    assert found[3] == Passage.uncut("Types of cheese:1", "Types of cheese is\nused. 1", "Types of cheese [SEP] Use")
    (target / "b.jsonl").unlink()  # as a killed run leaves it
    kept = (target / "a.jsonl").stat().st_mtime_ns
    done = run_script("make_corpus", f"pages={pages}", f"output_dir={target}")
    assert done.returncode == 0, done.stderr
    assert list(Corpus(target)) == found and (target / "a.jsonl").stat().st_mtime_ns == kept


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda p: p[1].pop("passages"), "record 1, field passages: missing field"),
        (lambda p: p[0]["passages"][1].pop("id"), r"record 0, field passages\[1\].id: missing field"),
        (lambda p: p[0]["passages"][1].update(titles="Use"), r"passages\[1\].titles: expected a list of texts"),
        (lambda p: p[0]["passages"][1].update(text=3), r"passages\[1\].text: expected text, got int"),
        (lambda p: p.insert(0, "x"), r"record 0, field \(page\): expected an object"),
    ],
)
def test_damaged_pages_name_file_page_and_field(
    tmp_path: Path, change: Callable[[list[Any]], object], problem: str
) -> None:
    found = [page("A"), page("B")]
    change(found)
    write_json(tmp_path / "p.json", found)
    with pytest.raises(DataError, match=f"p.json, {problem}|{problem}"):
        list(page_passages(tmp_path / "p.json"))


def test_no_pages_and_ids_that_occur_twice(pages: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no .json file"):
        MakeCorpus(str(tmp_path), str(tmp_path / "c")).run()
    write_json(pages / "c.json", [page("Goat")])
    with pytest.raises(DataError, match="'Goat:0' is also the id of"):
        MakeCorpus(str(pages), str(tmp_path / "c")).run()
    write_json(pages / "d.json", {})
    with pytest.raises(DataError, match="d.json, field .pages.: expected a list"):
        list(page_passages(pages / "d.json"))
