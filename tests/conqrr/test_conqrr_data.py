"""Files of questions in dialogues: what they give, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from finegrained_rlhf.conqrr.data import RewriteData, RewriteExample, read_rewrite_jsonl, write_rewrite_jsonl
from finegrained_rlhf.core.errors import ConfigError, DataError

EXAMPLES = [
    RewriteExample("d_1", "d", 1, (), "Who sang it?", rewrite="Who sang it?", gold=("p1", "p2"), topic_shift=False),
    RewriteExample("d_2", "d", 2, ("Who sang it?", ""), "When?", answer="1999", source="nq", topic_shift=True),
]


def test_own_files_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    write_rewrite_jsonl(path, EXAMPLES)
    assert read_rewrite_jsonl(path) == EXAMPLES
    reading = RewriteData(str(path)).read()
    assert (reading.examples, reading.entries) == (tuple(EXAMPLES), 1)
    assert reading.report()["sources"] == {"": 1, "nq": 1}
    assert "rewrite" not in json.loads(path.read_text().splitlines()[1])


@pytest.mark.parametrize(
    ("change", "field", "problem"),
    [
        ({"question": " "}, "question", "white space"),
        ({"question": None}, "question", "expected text"),
        ({"turn": 0}, "turn", "whole number from 1"),
        ({"turn": True}, "turn", "whole number from 1"),
        ({"history": ["Who?"]}, "history", "question, answer"),
        ({"history": "Who?"}, "history", "list"),
        ({"gold": [""]}, r"gold\[0\]", "empty"),
        ({"topic_shift": "no"}, "topic_shift", "true, false or null"),
        ({"rewrites": "x"}, "rewrites", "unknown field"),
        ({"id": "d_1"}, "id", "twice"),
    ],
)
def test_broken_lines_of_own_files(change: dict[str, Any], field: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    write_rewrite_jsonl(path, EXAMPLES)
    first, second = path.read_text().splitlines()
    path.write_text(f"{first}\n{json.dumps({**json.loads(second), **change})}\n")
    with pytest.raises(DataError, match=rf"own.jsonl, record d_[12], field {field}: .*{problem}"):
        read_rewrite_jsonl(path)


def test_missing_field_and_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"id": "a", "dialogue": "a", "turn": 1, "question": "Why?"}\n')
    with pytest.raises(DataError, match="record a, field history: missing field"):
        read_rewrite_jsonl(path)
    path.write_text("\n")
    with pytest.raises(DataError, match="no records"):
        read_rewrite_jsonl(path)


def test_grades_survive_the_projects_own_format(tmp_path: Path) -> None:
    graded = RewriteExample("a", "a", 1, (), "what", gold=("p",), grades={"p": 4, "q": 1})
    write_rewrite_jsonl(tmp_path / "q.jsonl", [graded])
    assert read_rewrite_jsonl(tmp_path / "q.jsonl") == [graded]
    row = {"id": "a", "dialogue": "a", "turn": 1, "history": [], "question": "what", "gold": ["p"]}
    for grades, problem in (
        ({"p": 0}, "record a, field grades.p: expected a whole number from 1, got 0"),
        ({"p": True}, "field grades.p: expected a whole number"),
        ([4], "field grades: expected an object"),
        ({"q": 1}, "record a, field grades: expected a grade of each gold passage, 'p' has none"),
    ):
        (tmp_path / "q.jsonl").write_text(json.dumps({**row, "grades": grades}))
        with pytest.raises(DataError, match=problem):
            read_rewrite_jsonl(tmp_path / "q.jsonl")


def test_another_format_than_the_own_comes_with_a_package() -> None:
    with pytest.raises(ConfigError, match="format: expected one of jsonl"):
        RewriteData("x", "quac")
    with pytest.raises(ConfigError, match="qrels belongs to .*, the format is 'jsonl'"):
        RewriteData("x", qrels="y")
    with pytest.raises(ConfigError, match="min_relevance: expected at least 1"):
        RewriteData("x", min_relevance=0)
