"""Agreement of measures with people: preferences, ranks, separation, on hand-made records."""

from __future__ import annotations

import numpy as np
import pytest

from finegrained_lab.experiments.qa_feedback.measures import (
    Judged,
    agreement,
    judged_records,
    preferred,
    rank_correlation,
    separation,
)
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.records import Feedback, FeedbackRecord, MissingInfo, SpanError

PASSAGE = Passage("", "Lakes", ("The lake lies in Norway and is 120 metres deep.",))
ANSWERS = ("It lies in Norway, and is 120 metres deep", "It lies in Sweden. It lies in Sweden.")


def record(preference: int | None = 1) -> FeedbackRecord:
    marks = Feedback((SpanError(0, 10, "Wrong-Grounding"),), (MissingInfo("Missing-Answer", 1, (1,)),), None)
    return FeedbackRecord("a", "where?", (PASSAGE,), ANSWERS, marks, (preference,), "In Norway, at 120 metres.")


def test_measures_and_marks_of_a_record() -> None:
    (judged,) = judged_records([record()], seed=0)
    better, worse = judged.answers
    assert better["facts/recalled"] == 1.0 and worse["facts/recalled"] == 0.0
    assert better["facts/unsupported"] == 0.0 and worse["facts/unsupported"] == 1.0
    assert (better["finished"], worse["finished"]) == (0.0, 1.0) and worse["repeats"] > 0  # type: ignore[operator]
    assert judged.pairs == ((0, 1),) and judged.marks is not None
    assert judged.marks == {"irrelevant": 0.0, "false": pytest.approx(10 / len(ANSWERS[0])), "missing": 1.0}
    assert judged_records([record(0)], seed=0)[0].pairs == ()
    assert judged_records([record(2)], seed=0)[0].pairs == ((1, 0),)


def test_preferences_count_what_the_better_answer_has_more_of() -> None:
    rows = ({"x": 1.0, "words": 10.0}, {"x": 0.0, "words": 10.0}, {"x": 1.0, "words": 20.0}, {"x": None, "words": 1.0})
    records = [Judged(rows, ((0, 1), (0, 2), (1, 2), (0, 3)), None)] * 3
    assert preferred(records, "x")[0] == pytest.approx((1 + 0.5 + 0) / 3)
    assert preferred(records, "x", like_length=True)[0] == 1.0


def test_ranks_and_separation_against_marks() -> None:
    pairs = np.array([[1.0, 0.0], [2.0, 0.1], [3.0, 0.0], [9.0, 0.9]])
    assert separation(pairs) == pytest.approx(3 / 4) and rank_correlation(np.repeat(pairs[:, :1], 2, axis=1)) == 1.0
    assert rank_correlation(pairs * [1, -1]) == pytest.approx(-rank_correlation(pairs))  # type: ignore[operator]
    assert separation(pairs * [1, 0]) is rank_correlation(pairs * [1, 0]) is None
    rows = [Judged(({"x": a},), (), {"false": b}) for a, b in pairs.tolist()] + [Judged(({"x": None},), (), None)]
    value, low, high = agreement(rows, "x", "false", separation)
    assert value == pytest.approx(3 / 4) and low is not None and high is not None and low <= 0.75 <= high
