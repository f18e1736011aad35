import json
from pathlib import Path
from typing import Any

import pytest

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.outputs import OutputRecord, read_outputs, write_outputs
from finegrained_rlhf.feedback.records import QAExample, derived_id

ROW: dict[str, Any] = {
    "id": "fw-1",
    "question": "How wide?",
    "text": "question: How wide? context: wikipage: A lake text: It is wide.",
    "passages": [["A lake", "It is wide.", "It is cold."]],
    "answer": ["3 km."],
    "outputs": ["3 km 🙂\u2028line", ""],
}


def save(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_round_trip(tmp_path: Path) -> None:
    records = read_outputs(save(tmp_path / "a.jsonl", ROW, {**ROW, "id": "fw-2", "answer": []}))
    assert records[0].passages == (Passage("", "A lake", ("It is wide.", "It is cold.")),)
    assert records[0].outputs == ("3 km 🙂\u2028line", "")
    write_outputs(tmp_path / "b.jsonl", records)
    assert read_outputs(tmp_path / "b.jsonl") == records
    first = (tmp_path / "b.jsonl").read_text(encoding="utf-8").split("\n")[0]
    assert json.loads(first) == ROW and list(json.loads(first)) == list(ROW)


def test_a_strangers_file_needs_question_passages_and_outputs_only(tmp_path: Path) -> None:
    bare = {key: ROW[key] for key in ("question", "passages", "outputs")}
    (record,) = read_outputs(save(tmp_path / "a.jsonl", bare))
    assert record.id == derived_id("How wide?", record.passages)
    assert record.references == () and record.text == ""


def test_record_of_an_example() -> None:
    example = QAExample("1", "q", "t", ("r",), (Passage("", "A", ("s",)),))
    assert OutputRecord.of(example, ["x", "y"]) == OutputRecord("1", "q", example.passages, ("r",), "t", ("x", "y"))


@pytest.mark.parametrize(
    ("change", "field", "problem"),
    [
        ({"outputs": ...}, "outputs", "missing field"),
        ({"outputs": []}, "outputs", "at least one output"),
        ({"outputs": "3 km"}, "outputs", "list of texts, got str"),
        ({"outputs": [None]}, "outputs[0]", "expected text, got NoneType"),
        ({"question": ""}, "question", "empty"),
        ({"passages": ["A lake"]}, "passages[0]", "list of texts, got str"),
        ({"passages": [[]]}, "passages[0]", "empty list"),
        ({"answer": [""]}, "answer[0]", "empty"),
        ({"text": 3}, "text", "expected text, got int"),
        ({"id": "fw-0"}, "id", "id 'fw-0' occurs twice"),
        ({"id": 3}, "id", "expected text, got int"),
    ],
)
def test_a_broken_record_is_named(tmp_path: Path, change: dict[str, Any], field: str, problem: str) -> None:
    row = {key: value for key, value in {**ROW, **change}.items() if value is not ...}
    path = save(tmp_path / "a.jsonl", {**ROW, "id": "fw-0"}, row)
    with pytest.raises(DataError) as caught:
        read_outputs(path)
    assert (caught.value.file, caught.value.record, caught.value.field) == (path, 1, field)
    assert problem in caught.value.problem


def test_broken_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read_outputs(tmp_path / "a.jsonl")
    path = save(tmp_path / "a.jsonl", ROW)
    path.write_text(path.read_text() + '{"id": "fw', encoding="utf-8")
    with pytest.raises(DataError, match="record 1: not valid JSON"):
        read_outputs(path)
    path.write_text("\n", encoding="utf-8")
    with pytest.raises(DataError, match="holds no records"):
        read_outputs(path)
