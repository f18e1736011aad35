"""Corrections as edits: what is kept of the records, and the table of marks by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finegrained_lab.experiments.qa_feedback import edit_mass
from finegrained_lab.experiments.qa_feedback.edit_mass import CorrectionsToFeedback, EditMassTable
from finegrained_lab.experiments.qa_feedback.split import SplitFeedback
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.records import SegmentScores
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.reading import read_feedback, write_feedback
from finegrained_rlhf.feedback.records import Feedback, FeedbackRecord, SpanError
from finegrained_rlhf.text.segmentation import RULES, shared_segmenter

PASSAGES = (Passage("Lake", "Lake Onega", ("Lake Onega lies in Russia.", "It is 120 metres deep.")),)
DRAFT, BETTER = "It lies in Russia. Cats are green.", "It lies in Russia."


class ByWord:
    """A model of edit mass that finds cats; `mass_shuffled` finds Russia."""

    def __init__(self, path: str, segmenter: str) -> None:
        self.word = "Russia" if path.endswith("shuffled") else "Cats"

    def setup(self, device: str) -> None:
        """Nothing to read."""

    def score(self, prompts: Any, texts: list[str]) -> SegmentScores:
        spans = [tuple(shared_segmenter(RULES).sub_sentences(text)) for text in texts]
        values = [tuple(-3.0 * (self.word in text[a:b]) for a, b in of) for text, of in zip(texts, spans, strict=True)]
        return SegmentScores(spans, values)


def record(i: int, corrected: str | None) -> FeedbackRecord:
    start = DRAFT.index("Cats")
    marks = (SpanError(start, start + 15, "Irrelevant"),) if i % 3 else ()
    return FeedbackRecord(f"q{i}", f"Where is lake {i}?", PASSAGES, (DRAFT,), Feedback(marks, (), corrected))


def test_where_people_mark_is_held_against_where_corrections_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("reward_models.scorers.EditMassScorer", ByWord)
    data, corrections = tmp_path / "data.json", tmp_path / "corrections.json"
    write_feedback(data, [record(i, None if i == 9 else BETTER) for i in range(10)])
    assert CorrectionsToFeedback(str(data), str(corrections)).run() == 9
    assert all(one.feedback is not None and not one.feedback.errors for one in read_feedback(corrections))
    SplitFeedback(str(corrections), str(tmp_path / "runs" / "folds"), folds=3).run()
    table = EditMassTable(
        str(tmp_path / "t.json"), "the command", feedback=str(data), directory=str(tmp_path / "runs"), chosen="Nothing."
    )
    with pytest.raises(DataError, match="no fold has both models"):
        table.run()
    for fold in range(3):
        for name in ("mass", "mass_shuffled"):
            (tmp_path / "runs" / f"fold_{fold}" / name).mkdir(parents=True)
    result = table.run()
    rows = {row["row"]: row for row in result["rows"]}
    assert result["questions"] == 9 and result["sub_sentences"] == 18
    assert result["marked"] == {"any mark": 6 / 18, "irrelevant": 6 / 18, "false": 0.0}
    # each of six marked pieces against the twelve others: three of the same kind are unmarked
    of_all = (9 + 3 / 2) / 12
    assert rows["mass"]["auc, any mark"][0] == rows["own edit"]["auc, any mark"][0] == pytest.approx(of_all)
    assert rows["mass"]["within, irrelevant"] == [1.0, 1.0, 1.0]
    assert rows["mass_shuffled"]["within, irrelevant"] == [0.0, 0.0, 0.0]
    assert rows["mass"]["auc, false"] == [None, None, None]
    assert rows["own edit"]["rank correlation with words changed"][0] == pytest.approx(1.0)
    assert "| own edit" in (tmp_path / "t.md").read_text()
    write_feedback(data, [record(0, None)])
    with pytest.raises(DataError, match="no record has a correction"):
        CorrectionsToFeedback(str(data), str(corrections)).run()
    capsys.readouterr()


def test_a_model_that_cuts_elsewhere_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Whole(ByWord):
        def score(self, prompts: Any, texts: list[str]) -> SegmentScores:
            return SegmentScores([((0, len(text)),) for text in texts], [(0.0,) for _ in texts])

    monkeypatch.setattr("reward_models.scorers.EditMassScorer", Whole)
    with pytest.raises(DataError, match="cuts this answer in another way"):
        edit_mass.judged_answers(tmp_path, [], [record(1, BETTER)])
    assert np.array_equal(edit_mass._changed(record(1, BETTER), shared_segmenter(RULES)), [0.0, 4.0])
