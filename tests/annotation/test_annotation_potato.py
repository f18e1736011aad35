"""Potato's forms: its configuration and tasks, states that hold what people did, and states that cannot be."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from annotation_tools import mark, potato_state, value
from annotation_toy import ANSWER, OTHER, item, project, span, task
from hypothesis import given
from hypothesis import strategies as st

from finegrained_rlhf.annotation.potato import ShownText
from finegrained_rlhf.annotation.reading import ReadAnnotations
from finegrained_rlhf.annotation.tools import tool_named
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import read_json, write_json
from finegrained_rlhf.feedback.labels import Suggestion
from finegrained_rlhf.feedback.taxonomy import QA_FEEDBACK

OF = project((item("q1"), item("q2")), people=("Ann B.",))
NAME = "Ann B."


def done() -> list[dict[str, Any]]:
    """What is done to both tasks, in the form that all tools share."""
    spans = [
        span(ANSWER, "stays warm", "Wrong-Grounding", evidence=[[1, 2], [1, 3]], note="it: is cold\nso they say "),
        span(ANSWER, "👩‍👩‍👧 swim", "Irrelevant"),
    ]
    gap = {"type": "Missing-Answer", "passage": 1, "sentences": [1, 3]}
    marked = {"spans": spans, "no_error": False, "missing": [gap], "nothing_missing": False, "correction": OTHER}
    return [task(OF, NAME, "q1", **marked, ranking=[[1], [0]]), task(OF, NAME, "q2")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    OF.write(tmp_path / "tasks")
    tool_named("potato").write_tasks(tmp_path, OF.payload(NAME))
    return tmp_path


def read(folder: Path, state: Any) -> Any:
    write_json(folder / "user_state.json", state)
    files = {NAME: str(folder / "user_state.json")}
    return ReadAnnotations(files, str(folder / "tasks"), str(folder / "a.jsonl"), tool="potato").run()


def test_the_configuration_asks_for_what_the_taxonomy_does(folder: Path) -> None:
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    schemes = {scheme["name"]: scheme for scheme in config["annotation_schemes"]}
    assert list(schemes) == [
        *("errors", "no_error", "notes", "missing", "nothing_missing", "correction", "place_1", "place_2"),
    ]
    assert [label["name"] for label in schemes["errors"]["labels"]][:2] == ["Irrelevant", "Redundant"]
    assert config["user_config"] == {"allow_all_users": False, "users": ["Ann_B_"]}
    tasks = {row["id"].split()[0]: row for row in read_json(folder / "tasks.json")}
    assert tasks["q1"]["correct_this"] == ANSWER and "swim. ¶ Its water" in tasks["q1"]["answer"]
    pairs = replace(OF, taxonomy=replace(QA_FEEDBACK, comparison="pairs")).payload(NAME)
    tool_named("potato").write_tasks(folder, pairs)
    last = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))["annotation_schemes"][-1]
    assert last["name"] == "pair_1_2"
    assert last["labels"] == ["Answer 1 is better", "Equally good", "Answer 2 is better"]


@given(st.text(alphabet="ab <>&\r\n\t\u00a0\U0001f30aﻡ", max_size=30), st.data())
def test_every_place_of_a_shown_text_leads_back(text: str, data: st.DataObject) -> None:
    shown = ShownText.of(text)
    assert "<" not in shown.text and not re.search(r"\s\s|[\r\n\t]", shown.text) and shown.text == shown.text.strip()
    assert "".join(shown.text.split()).replace("＜", "<").replace("¶", "") == "".join(text.split())
    words = [i for i, character in enumerate(shown.text) if not character.isspace() and character != "¶"]
    if words:
        start, last = sorted(data.draw(st.tuples(st.sampled_from(words), st.sampled_from(words))))
        a, b = shown.original(start, last + 1)
        assert text[a:b].split() == shown.text[start : last + 1].replace("＜", "<").replace("¶", " ").split()


def test_what_people_marked_comes_back(folder: Path) -> None:
    found = read(folder, potato_state(OF.payload(NAME), done()))
    one, other = (next(a for a in found.annotations if a.item == name) for name in ("q1", "q2"))
    assert [(ANSWER[e.start : e.end], e.error_type, e.evidence, e.explanation) for e in one.errors] == [
        ("stays warm", "Wrong-Grounding", ((1, 2), (1, 3)), "it: is cold\nso they say "),
        ("👩‍👩‍👧 swim", "Irrelevant", (), ""),
    ]
    assert one.missing[0].sentence_ids == (1, 3) and one.correction == OTHER and one.seconds == 3.0
    assert one.preferences in ((1,), (2,)) and other.preferences == (0,)
    assert not other.errors and not other.missing and other.correction == ANSWER
    assert not +found.repairs


def test_a_box_that_was_left_alone_corrects_nothing(folder: Path) -> None:
    state = potato_state(OF.payload(NAME), done())
    for rows in state["instance_id_to_label_to_value"].values():
        rows[:] = [row for row in rows if row[0]["schema"] != "correction"]
    assert {one.correction for one in read(folder, state).annotations} == {ANSWER}


def test_a_task_that_nobody_began_is_not_there(folder: Path) -> None:
    assert [one.item for one in read(folder, potato_state(OF.payload(NAME), done()[1:])).annotations] == ["q2"]


Change = Callable[[dict[str, Any], str], object]


def labels(row: Any) -> Change:
    return lambda state, name: state["instance_id_to_label_to_value"][name].append(row)


def spans(row: Any) -> Change:
    return lambda state, name: state["instance_id_to_span_to_value"][name].append(row)


def noted(text: str) -> Change:
    def change(state: dict[str, Any], name: str) -> None:
        rows = state["instance_id_to_label_to_value"][name]
        rows[:] = [*(row for row in rows if row[0]["schema"] != "notes"), value("notes", "text_box", text)]

    return change


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda s, n: s.update(user_id="ben"), r"field user_id: expected 'Ann_B_', got 'ben'"),
        (lambda s, n: s.pop("user_id"), r"user_id"),
        (lambda s, n: s["instance_id_to_label_to_value"].update({"q1 0123": []}), "'q1 0123' is not among Ann B.'s"),
        (spans([mark("errors", "Rude", 0, 3, "answer"), 1]), r"task 'q1'.*'Rude'"),
        (spans([mark("errors", "Irrelevant", 5, 5, "answer"), 1]), "expected start < end, got 5 and 5"),
        (spans([mark("errors", "Irrelevant", 0, 500, "answer"), 1]), "ends at 500, behind the text"),
        (spans([mark("emotion", "Joy", 0, 3, "answer"), 1]), "a mark of 'emotion', which is not asked for"),
        (spans([{"schema": "errors"}, 1]), r"spans\[3\]"),
        (spans([]), "expected a span"),
        (spans([mark("missing", "Missing-Answer", 1, 2, "passages"), 1]), "touches no sentence"),
        (labels(value("place_1", "2", "2")), "field place_1: two choices, expected one"),
        (labels(["x"]), "expected a label and its value"),
        (labels(value("no_error", "no_error", "no_error")), "no_error"),
        (noted("first: x"), "field notes: expected 'NUMBER: note', got 'first: x'"),
        (noted("3: x"), "speaks of mark 3 of 2"),
        (noted("1: x\n1: y"), "speaks of mark 1 twice"),
        (noted("1 evidence: two"), "field mark 1: evidence: expected passage.sentence, got 'two'"),
        (noted("missing 2 also: 1.2"), "speaks of missing 2 of 1"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_written(folder: Path, change: Change, problem: str) -> None:
    state = potato_state(OF.payload(NAME), done())
    change(state, next(name for name in state["instance_id_to_label_to_value"] if name.startswith("q1")))
    with pytest.raises(DataError, match=problem):
        read(folder, state)
    assert not (folder / "a.jsonl").exists()


def test_a_correction_that_is_none_is_refused(folder: Path) -> None:
    state = potato_state(OF.payload(NAME), done())
    for rows in state["instance_id_to_label_to_value"].values():
        rows[:] = [value("correction", "correction", "not JSON") if r[0]["schema"] == "correction" else r for r in rows]
    with pytest.raises(DataError, match="expected what the box for corrections stores"):
        read(folder, state)


def test_the_annotator_must_be_named(folder: Path) -> None:
    write_json(folder / "user_state.json", potato_state(OF.payload(NAME), done()))
    with pytest.raises(DataError, match="Potato does not name our project"):
        ReadAnnotations([str(folder / "user_state.json")], str(folder / "tasks"), "a.jsonl", tool="potato").run()


def test_it_shows_no_suggestions(tmp_path: Path) -> None:
    suggested = project((item("q1", suggestions=(Suggestion(0, 3, "Irrelevant", 0.9, "m"),)),))
    with pytest.raises(ConfigError, match="potato shows no suggestions"):
        tool_named("potato").write_tasks(tmp_path, suggested.payload("ann"))
