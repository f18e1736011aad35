"""Records for a dense retriever of questions in dialogues: what is asked, found and not found, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from script_runs import run_script

from finegrained_rlhf.conqrr import MakeQuestionDprData
from finegrained_rlhf.conqrr.data import PassageLabel, RewriteExample, write_rewrite_jsonl, write_rewrites
from finegrained_rlhf.conqrr.labels import write_labels
from finegrained_rlhf.core.errors import ConfigError, DataError, FineGrainedError
from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.retrieval.bm25.retriever import Bm25Config
from finegrained_rlhf.training.dpr.records import DprRecord, read_dpr_records

FIRST, COLOR = "who built the mill", "what color is the mill"
PASSAGES = {
    "mill": "Ada Berg  built the mill",
    "red": "the color of the mill: red",
    "inn": "an inn by the mill",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    examples = [
        RewriteExample("d_1", "d", 1, (), FIRST, FIRST, "Ada Berg built it", gold=("mill",)),
        RewriteExample("d_2", "d", 2, (FIRST, "Ada Berg"), "and its color", COLOR, "red", gold=("red", "inn")),
        RewriteExample("d_3", "d", 3, (FIRST, "Ada", COLOR, "red"), "why", None, "by chance"),
    ]
    write_rewrite_jsonl(tmp_path / "questions.jsonl", examples)
    rows = ({"id": name, "title": f"The {name}", "text": text} for name, text in PASSAGES.items())
    write_jsonl(tmp_path / "corpus.jsonl", rows)
    Bm25Config().build(str(tmp_path / "corpus.jsonl"), tmp_path / "index")
    return tmp_path


def made(folder: Path, **changes: Any) -> dict[str, DprRecord]:
    files = {"data": "questions.jsonl", "index": "index", "corpus": "corpus.jsonl", "output": "records.jsonl"}
    job = MakeQuestionDprData(**{**{name: str(folder / path) for name, path in files.items()}, **changes})
    assert job.run() == len(records := read_dpr_records(folder / "records.jsonl"))
    return {record.id: record for record in records}


def ids(passages: Any) -> list[str]:
    return [passage.id for passage in passages]


def test_gold_passages_and_what_is_found_instead(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = made(folder)
    assert list(found) == ["d_1", "d_2"]
    assert "2 of 3 questions (1 without a passage to find) -> " in capsys.readouterr().out
    second = found["d_2"]
    assert second.turns == (f"and its color Ada Berg {FIRST}",)  # newest first, as a search for the dialogue asks
    assert ids(second.positives) == ["red", "inn"] and ids(second.hard_negatives) == ["mill"] and not second.negatives
    assert (second.hard_negatives[0].title, second.hard_negatives[0].text) == ("The mill", "Ada Berg built the mill")
    assert set(ids(found["d_1"].hard_negatives)) == {"red", "inn"}
    assert len(made(folder, negatives=1)["d_1"].hard_negatives) == 1


def test_queries_of_every_kind(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert made(folder, query="question")["d_2"].turns == ("and its color",)
    assert made(folder, query="rewrite")["d_2"].turns == (COLOR,)
    write_rewrites(folder / "rewrites.jsonl", {"d_1": " ", "d_2": "mill color"})
    found = made(folder, rewrites=str(folder / "rewrites.jsonl"))
    assert {name: record.turns for name, record in found.items()} == {"d_2": ("mill color",)}
    said = capsys.readouterr().out
    assert "1 of 3 questions (1 without a passage to find, 1 without a query) -> " in said


def test_labels_take_the_place_of_gold(folder: Path) -> None:
    labels = [PassageLabel("d_2", "mill", "inn", 0.5), PassageLabel("d_3", "red", "mill", 0.5)]
    write_labels(folder / "labels.jsonl", labels)
    found = made(folder, labels=str(folder / "labels.jsonl"))
    assert {name: ids(record.positives) for name, record in found.items()} == {"d_2": ["mill"], "d_3": ["red"]}
    assert ids(found["d_3"].negatives) == ["mill"]
    assert ids(found["d_2"].negatives) == [] and ids(found["d_2"].hard_negatives) == []  # inn and red are gold


def _strange_label(folder: Path) -> dict[str, Any]:
    write_labels(folder / "labels.jsonl", [PassageLabel("d_9", "mill", "inn", 0.5)])
    return {"labels": str(folder / "labels.jsonl")}


def _strange_rewrite(folder: Path) -> dict[str, Any]:
    write_rewrites(folder / "rewrites.jsonl", {"d_8": "mill"})
    return {"rewrites": str(folder / "rewrites.jsonl")}


def _blank_rewrites(folder: Path) -> dict[str, Any]:
    write_rewrites(folder / "rewrites.jsonl", {"d_1": ""})
    return {"rewrites": str(folder / "rewrites.jsonl")}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda _: {"query": "banana"}, ConfigError, "query: expected one of question, context, rewrite"),
        (lambda _: {"negatives": 0}, ConfigError, "negatives: expected at least 1, got 0"),
        (_strange_label, DataError, "labels.jsonl, record d_9: is of no question of the data (1 in all)"),
        (_strange_rewrite, DataError, "rewrites.jsonl, record d_8: is of no question of the data (1 in all)"),
        (_blank_rewrites, DataError, "questions.jsonl: no question has both a query and a passage to find"),
        (lambda folder: {"corpus": str(folder / "none.jsonl")}, DataError, "no such file"),
    ],
)
def test_what_is_wrong_is_named(
    folder: Path, change: Callable[[Path], dict[str, Any]], error: type[FineGrainedError], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        made(folder, **change(folder))
    assert not (folder / "records.jsonl").exists()


@pytest.mark.scripts
def test_the_script(folder: Path) -> None:
    given = ["index=index", "corpus=corpus.jsonl", "output=records.jsonl"]
    files = [f"{name}={folder / path}" for name, path in (one.split("=") for one in given)]
    done = run_script("make_question_dpr_data", f"data.path={folder}/questions.jsonl", *files)
    assert done.returncode == 0 and "2 of 3 questions" in done.stdout, done.stderr
    assert [json.loads(line)["id"] for line in (folder / "records.jsonl").read_text().splitlines()] == ["d_1", "d_2"]
