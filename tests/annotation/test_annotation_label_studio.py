"""Label Studio's forms: tasks, configuration, exports that hold what people did, and exports that cannot be."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from annotation_toy import ANSWER, item, project

from finegrained_rlhf.annotation.forms import PassageLayout
from finegrained_rlhf.annotation.reading import ReadAnnotations
from finegrained_rlhf.annotation.tools import tool_named
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, write_json
from finegrained_rlhf.feedback.labels import Suggestion

ITEMS = (item("q1", suggestions=(Suggestion(9, 17, "Irrelevant", 0.7, "m@1"),)), item("q2"))


def units(text: str, place: int) -> int:
    return len(text[:place].encode("utf-16-le")) // 2


def region(name: str, to: str, kind: str, value: dict[str, Any], identifier: str) -> dict[str, Any]:
    return {"id": identifier, "from_name": name, "to_name": to, "type": kind, "value": value}


def labelled(name: str, to: str, text: str, piece: str, label: str, identifier: str) -> dict[str, Any]:
    start = text.index(piece)
    value = {"start": units(text, start), "end": units(text, start + len(piece)), "text": piece, "labels": [label]}
    return region(name, to, "labels", value, identifier)


def chosen(name: str, to: str, choice: str) -> dict[str, Any]:
    return region(name, to, "choices", {"choices": [choice]}, name)


def exported(tasks: list[dict[str, Any]], **changes: Any) -> list[dict[str, Any]]:
    """What the server exports when somebody marked both tasks."""
    rows = []
    for number, task in enumerate(tasks):
        data = task["data"]
        result = [region("correction", "answer", "textarea", {"text": [data["answer"]]}, "c")]
        result += [chosen("place_1", "shown_1", "1"), chosen("place_2", "shown_2", "1")]
        if data["item"] == "q1":
            result += [
                labelled("errors", "answer", ANSWER, "👩‍👩‍👧 swim", "Irrelevant", "r1"),
                labelled("errors", "answer", ANSWER, "stays warm", "Inconsistent fact", "r2"),
                region("evidence", "answer", "textarea", {"text": ["1.2, 1.3"]}, "r2"),
                region("note", "answer", "textarea", {"text": ["it is cold"]}, "r2"),
                labelled("missing", "passages", data["passages"], "three kilometres", "Missing-Answer", "r3"),
            ]
        else:
            result += [chosen("no_error", "answer", "x"), chosen("nothing_missing", "answer", "x")]
        made = {"id": number, "completed_by": 1, "was_cancelled": False, "lead_time": 31.5, "result": result}
        rows.append({"id": number, "data": data, "annotations": [{**made, **changes}], "predictions": []})
    return rows


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    of = project(ITEMS)
    of.write(tmp_path / "tasks")
    tool_named("label_studio").write_tasks(tmp_path, of.payload("ann"))
    return tmp_path


def read(folder: Path, export: Any) -> Any:
    write_json(folder / "export.json", export)
    exports = {"ann": str(folder / "export.json")}
    return ReadAnnotations(exports, str(folder / "tasks"), str(folder / "a.jsonl"), tool="label_studio").run()


def test_the_configuration_and_tasks_are_what_the_server_reads(folder: Path) -> None:
    root = ElementTree.fromstring((folder / "label_config.xml").read_text(encoding="utf-8"))
    labels = [label.get("alias") for label in root.iter("Label")]
    assert labels[:2] == ["Irrelevant", "Redundant"] and "Missing-Minor-Auxiliary" in labels
    assert len({label.get("hotkey") for label in root.iter("Label")}) == len(labels)
    tasks = {task["data"]["item"]: task for task in read_json(folder / "tasks.json")}
    assert tasks["q1"]["data"]["answer"] == ANSWER and len(tasks["q1"]["data"]["order"]) == 2
    (suggested,) = tasks["q1"]["predictions"][0]["result"]
    value = suggested["value"]
    assert ANSWER.encode("utf-16-le")[2 * value["start"] : 2 * value["end"]].decode("utf-16-le") == value["text"]


def test_what_people_marked_comes_back(folder: Path) -> None:
    found = read(folder, exported(read_json(folder / "tasks.json")))
    one = next(a for a in found.annotations if a.item == "q1")
    assert {(ANSWER[e.start : e.end], e.error_type, e.evidence) for e in one.errors} == {
        ("👩‍👩‍👧 swim", "Irrelevant", ()),
        ("stays warm", "Wrong-Grounding", ((1, 2), (1, 3))),
    }
    assert one.missing[0].sentence_ids == (1,) and one.preferences == (0,) and one.seconds == 31.5
    other = next(a for a in found.annotations if a.item == "q2")
    assert not other.errors and not other.missing and other.correction == ANSWER
    assert found.repairs["offsets in UTF-16 units"] == 2


def test_a_skipped_task_says_nothing_and_one_that_nobody_began_is_not_there(folder: Path) -> None:
    rows = exported(read_json(folder / "tasks.json"), was_cancelled=True)
    rows[1]["annotations"] = []
    found = read(folder, rows)
    assert [one.skipped for one in found.annotations] == [True]


def broken(change: str) -> Any:
    def make(rows: list[dict[str, Any]]) -> Any:
        first = next(row for row in rows if row["data"]["item"] == "q1")
        made = first["annotations"][0]
        if change == "object":
            return {"tasks": rows}
        if change == "item":
            first["data"]["item"] = "q9"
        if change == "twice":
            first["annotations"].append(dict(made))
        if change == "accounts":
            made["completed_by"] = {"id": 2}
        if change == "evidence":
            next(r for r in made["result"] if r["from_name"] == "evidence")["value"]["text"] = ["second"]
        if change == "labels":
            next(r for r in made["result"] if r["from_name"] == "errors")["value"]["labels"] = []
        if change == "place":
            next(r for r in made["result"] if r["from_name"] == "missing")["value"]["start"] = 10_000
        if change == "edited":
            first["data"]["hash"] = "0"
        if change == "moved":
            next(r for r in made["result"] if r["from_name"] == "errors")["value"]["text"] = "elsewhere"
        return rows

    return make


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("object", "expected a list"),
        ("item", "item 'q9' is not among ann's"),
        ("twice", "2 finished annotations, expected one a project"),
        ("accounts", "annotations by 2 accounts"),
        ("evidence", "region r2: evidence: expected passage.sentence, got 'second'"),
        ("labels", "expected one label"),
        ("place", "region r3: is no place in the passages"),
        ("edited", "its text is not the one that was given out"),
        ("moved", "'elsewhere' stands in no place of the answer"),
    ],
)
def test_exports_that_cannot_be(folder: Path, change: str, problem: str) -> None:
    rows = broken(change)(exported(read_json(folder / "tasks.json")))
    with pytest.raises(DataError, match=problem):
        read(folder, rows)
    assert not (folder / "a.jsonl").exists()


def test_the_annotator_must_be_named(folder: Path) -> None:
    write_json(folder / "export.json", exported(read_json(folder / "tasks.json")))
    job = ReadAnnotations([str(folder / "export.json")], str(folder / "tasks"), str(folder / "a"), tool="label_studio")
    with pytest.raises(DataError, match="give exports="):
        job.run()


def test_the_layout_finds_every_sentence_again() -> None:
    passages = [["A 🌊", "One.", "Two  b."], ["", "Three."]]
    layout = PassageLayout.of(passages)
    for start, end, passage, sentence in layout.places:
        assert layout.text[start:end] == passages[passage - 1][sentence]
        assert layout.sentences(start, end) == ([(passage, sentence)] if passages[passage - 1][sentence] else [])
    whole = layout.sentences(0, len(layout.text))
    assert whole == [(1, 0), (1, 1), (1, 2), (2, 1)] and json.dumps(PassageLayout.of(passages).text)
