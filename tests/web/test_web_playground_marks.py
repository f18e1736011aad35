"""Marks of the playground: a feedback file that reward models read, of which nothing is lost."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from playground_toy import ROW, make_run
from starlette.testclient import TestClient

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.reading import read_feedback, write_feedback
from finegrained_rlhf.feedback.records import FeedbackRecord, SpanError
from finegrained_rlhf.feedback.taxonomy import QA_FEEDBACK, Category, ErrorType, Taxonomy
from finegrained_rlhf.web.application import Settings, create_app
from finegrained_rlhf.web.playground.marks import FEEDBACK, add_mark

PASSAGES = (Passage("", "Colours", ("red is one.", "blue is two.")),)


def test_a_click_becomes_feedback_that_reward_models_read(tmp_path: Path) -> None:
    make_run(tmp_path)
    mark = {"row": ROW, "reward": "run", "answer": "red 😀 blue", "start": 6, "end": 10, "type": "Unverifiable"}
    with TestClient(create_app(Settings(tmp_path)), base_url="http://localhost") as client:
        first = client.post("/playground/marks", json={**mark, "explanation": " not there "})
        assert first.json() == {"file": FEEDBACK, "marks": 1}
        assert (
            client.post("/playground/marks", json={**mark, "answer": "green", "start": 0, "end": 5}).json()["marks"]
            == 2
        )
        for wrong, words in (({"end": 99}, "ends after prediction 1"), ({"type": "X"}, "expected one of Irrelevant")):
            refused = client.post("/playground/marks", json={**mark, **wrong})
            assert refused.status_code == 422 and words in refused.json()["error"]
    (record,) = read_feedback(tmp_path / FEEDBACK)
    assert record.predictions == ("red 😀 blue", "green") and record.passages == PASSAGES
    assert record.feedback is not None and record.feedback.errors == (SpanError(6, 10, "Unverifiable", "not there"),)
    assert record.more_feedback[1].errors == (SpanError(0, 5, "Unverifiable"),)


def test_marks_of_many_at_once_are_all_kept_and_none_is_doubled(tmp_path: Path) -> None:
    file = tmp_path / FEEDBACK

    def mark(person: int) -> None:
        for place in range(4):
            error = SpanError(place, place + 1, "Irrelevant", f"{person}")
            for _ in range(2):  # a click that is sent again
                add_mark(file, f"question {person % 2}?", PASSAGES, f"answer {person}", error, QA_FEEDBACK)

    people = [threading.Thread(target=mark, args=(person,)) for person in range(6)]
    for thread in people:
        thread.start()
    for thread in people:
        thread.join()
    records = read_feedback(file)
    kept = {
        (record.predictions[i], error.start, error.explanation)
        for record in records
        for i, feedback in record.marked.items()
        for error in feedback.errors
    }
    assert kept == {(f"answer {p}", place, str(p)) for p in range(6) for place in range(4)}
    assert sum(len(feedback.errors) for record in records for feedback in record.marked.values()) == 24


def test_preferences_of_a_record_stay_when_an_answer_is_added(tmp_path: Path) -> None:
    file = tmp_path / FEEDBACK
    error = SpanError(0, 1, "Irrelevant")
    record = add_mark(file, "a?", PASSAGES, "one", error, QA_FEEDBACK)
    more = FeedbackRecord(record.id, "a?", PASSAGES, ("one", "two"), record.feedback, (2,))
    write_feedback(file, [more])
    assert add_mark(file, "a?", PASSAGES, "three", error, QA_FEEDBACK).preferences == (2, None, None)


def test_a_damaged_file_and_one_of_another_taxonomy_stay_as_they_are(tmp_path: Path) -> None:
    file, error = tmp_path / FEEDBACK, SpanError(0, 1, "Tone")
    other = Taxonomy("tone", {"tone": Category("tone", {"Tone": ErrorType("Tone")})})
    add_mark(file, "a?", (), "one", error, other)
    before = file.read_bytes()
    with pytest.raises(DataError, match="unknown error type 'Tone'"):
        add_mark(file, "b?", (), "one", SpanError(0, 1, "Irrelevant"), QA_FEEDBACK)
    assert file.read_bytes() == before
    file.write_bytes(before[:-9])
    with pytest.raises(DataError, match=FEEDBACK):
        add_mark(file, "b?", (), "one", error, other)
    assert file.read_bytes() == before[:-9]
