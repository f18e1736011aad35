"""Feedback of several rounds, joined."""

from __future__ import annotations

from pathlib import Path

from feedback_samples import record

from finegrained_lab.experiments.annotation.join import JoinFeedback
from finegrained_rlhf.feedback.reading import read_feedback, write_feedback


def test_rounds_are_joined_and_a_question_stays_as_often_as_it_was_annotated(tmp_path: Path) -> None:
    write_feedback(tmp_path / "1.json", [record("It is cold.", name="a"), record("It is wet.", name="b")])
    write_feedback(tmp_path / "2.json", [record("It is warm.", name="a")])
    joined = JoinFeedback([str(tmp_path / "1.json"), str(tmp_path / "2.json")], str(tmp_path / "all.json")).run()
    assert [(one.id, one.predictions[0]) for one in joined] == [
        ("a", "It is cold."),
        ("b", "It is wet."),
        ("a@2", "It is warm."),
    ]
    assert read_feedback(tmp_path / "all.json") == joined
