"""Trivial answers as outputs, and judges of counted words that see through nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from finegrained_lab.experiments.qa_feedback.gate import WriteTrivialAnswers
from finegrained_lab.experiments.qa_feedback.trivial import trivial_answers
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.outputs import read_outputs
from finegrained_rlhf.feedback.reading import write_examples
from finegrained_rlhf.feedback.records import Feedback, FeedbackRecord, QAExample

PASSAGE = Passage("", "Lakes", ("The lake is deep. It lies in Norway.",))


def test_answers_that_nobody_has_to_learn_are_written_as_outputs(tmp_path: Path) -> None:
    examples = [
        QAExample("a", "In Norway or where?", "text", ("In Norway.",), (PASSAGE,)),
        QAExample("b", "Why?", "text", ("So.",), ()),
    ]
    write_examples(tmp_path / "data.json", examples)
    WriteTrivialAnswers(str(tmp_path / "data.json"), str(tmp_path / "made")).run()
    made = {path.name.split(".")[0]: path for path in (tmp_path / "made").iterdir()}
    answers = {name: [record.outputs for record in read_outputs(path)] for name, path in made.items()}
    assert answers == {
        "gold": [("In Norway.",), ("So.",)],
        "cut_lead": [("The lake is deep. It lies in Norway.",), ("",)],
        "best_sentence": [("It lies in Norway.",), ("",)],
    }


@pytest.mark.parametrize("golds", [("It.", "That."), (None, None), ("It.", "It.")])
def test_what_cannot_be_made_is_none(golds: tuple[str | None, str | None]) -> None:
    records = [
        FeedbackRecord(f"{i}", "Why?", (PASSAGE,) if i else (), ("So.",), Feedback((), (), None), gold=gold)
        for i, gold in enumerate(golds)
    ]
    first, second = trivial_answers(records, 0)
    assert first["cut_lead"] is None and second["cut_lead"] == "The lake is deep. It lies in Norway."
    assert first["gold, 30 words"] == golds[0] and first["restated question"] == "Why?"
    assert first["gold of another question"] == ("That." if golds[1] == "That." else None)
