"""Votes of three people, by hand."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from annotation_toy import item, project

from finegrained_rlhf.annotation.adjudication import (
    Adjudicate,
    adjudicated,
    central_correction,
    voted_preferences,
)
from finegrained_rlhf.annotation.annotations import Annotation, write_annotations
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.feedback.reading import read_feedback
from finegrained_rlhf.feedback.records import MissingInfo, SpanError
from finegrained_rlhf.feedback.taxonomy import QA_FEEDBACK
from finegrained_rlhf.text.segmentation import SpacySegmenter

SEGMENTER = SpacySegmenter("rules")
TEXT = "The lake is very wide on all of its sides. It is cold in there all the year. Nobody swims."
ITEM = item("q1", answers=(TEXT, "It is wide.", "It is cold."))
FIRST, SECOND, THIRD = (
    "The lake is very wide on all of its sides.",
    "It is cold in there all the year.",
    "Nobody swims.",
)


def mark(piece: str, kind: str) -> SpanError:
    return SpanError(TEXT.index(piece), TEXT.index(piece) + len(piece), kind, "")


def said(who: str, *errors: SpanError, **changes: Any) -> Annotation:
    made = Annotation("q1", who, "page", project([ITEM]).guideline_version, None, 0, (0, 1, 2), errors)
    return replace(made, **{"correction": TEXT, **changes})


def test_a_segment_that_more_than_half_mark_keeps_its_marks_and_the_others_are_put_aside() -> None:
    people = [
        said("ann", mark(FIRST, "Irrelevant"), mark(THIRD, "Unverifiable")),
        said("ben", mark("very wide on all of its sides", "Redundant")),
        said("cleo", mark(FIRST, "Irrelevant"), mark(SECOND, "Wrong-Grounding")),
    ]
    feedback = adjudicated(ITEM, people, QA_FEEDBACK, SEGMENTER, "majority").feedback
    assert feedback is not None and feedback.annotators == ("ann", "ben", "cleo")
    (kept,) = feedback.errors
    assert (TEXT[kept.start : kept.end], kept.error_type) == (FIRST, "Irrelevant")
    assert set(kept.annotators) == {"ann", "ben", "cleo"}
    assert {(TEXT[e.start : e.end], e.annotators) for e in feedback.dropped} == {
        (THIRD, ("ann",)),
        (SECOND, ("cleo",)),
    }
    union = adjudicated(ITEM, people, QA_FEEDBACK, SEGMENTER, "union").feedback
    assert union is not None and len(union.errors) == 3 and not union.dropped
    both = adjudicated(ITEM, people, QA_FEEDBACK, SEGMENTER, "intersection").feedback
    assert both is not None and [e.error_type for e in both.errors] == ["Irrelevant"]


def test_missing_sentences_corrections_and_preferences_are_voted_on() -> None:
    gaps = [MissingInfo("Missing-Answer", 1, (1, 2)), MissingInfo("Missing-Minor-Auxiliary", 1, (2,))]
    people = [
        said("ann", missing=(gaps[0],), correction="It is wide and cold.", preferences=(1, 1, 0)),
        said("ben", missing=(gaps[1],), correction="It is wide.", preferences=(1, 2, None)),
        said("cleo", correction="It is wide.", preferences=(2, 1, 1)),
    ]
    record = adjudicated(ITEM, people, QA_FEEDBACK, SEGMENTER, "majority")
    assert record.feedback is not None
    assert record.feedback.missing_info == (MissingInfo("Missing-Answer", 1, (2,), ("ann", "ben")),)
    assert record.feedback.corrected_prediction == "It is wide."
    assert record.preferences == (1, 1, None) == voted_preferences(people, 3)
    assert central_correction([said("ann", correction=None)]) is None


def test_one_persons_annotation_is_taken_as_it_is() -> None:
    across = SpanError(4, TEXT.index("cold"), "Unverifiable", "x", ((1, 1),))
    record = adjudicated(ITEM, [said("ann", across)], QA_FEEDBACK, SEGMENTER, "majority")
    assert record.feedback is not None and record.feedback.errors == (replace(across, annotators=("ann",)),)


def test_the_job_takes_an_experts_word_and_refuses_what_cannot_be(tmp_path: Path) -> None:
    of = project([ITEM, item("q0", role="qualification")], ("ann", "ben"))
    of.write(tmp_path / "tasks")
    rows = [
        said("ann", mark(THIRD, "Irrelevant"), preferences=(1, 1, 1)),
        said("ben", preferences=(2, 2, 2)),
        replace(said("ben"), item="q0"),
    ]
    write_annotations(tmp_path / "a.jsonl", rows)
    base: dict[str, Any] = {"annotations": str(tmp_path / "a.jsonl"), "tasks": str(tmp_path / "tasks")}
    base |= {"output": str(tmp_path / "f.json"), "segmenter": "rules"}
    (record,) = Adjudicate(**base, how="expert", expert="ann").run()
    assert record.preferences == (1, 1, 1) and len(record.marked[0].errors) == 1
    (record,) = Adjudicate(**base, how="union", provenance=False).run()
    assert record.marked[0].annotators == () and record.preferences == (None,) * 3
    assert read_feedback(tmp_path / "f.json") == [record]
    for bad in ({"how": "vote"}, {"how": "expert"}, {"expert": "ann"}):
        with pytest.raises(ConfigError):
            Adjudicate(**base, **bad)
    with pytest.raises(ConfigError, match="no annotator 'zoe'"):
        Adjudicate(**base, how="expert", expert="zoe").run()
    write_annotations(tmp_path / "a.jsonl", rows[2:])
    with pytest.raises(DataError, match="no annotation to make a record of"):
        Adjudicate(**base).run()


def test_a_model_of_annotators_gives_single_and_shared_items_one_rate_of_errors() -> None:
    """Who overlooks a third of the errors is corrected for: votes of two keep too few, the model about what is there."""
    pytest.importorskip("crowdkit")
    from finegrained_rlhf.annotation.annotator_model import believed_errors

    chance = random.Random(0)
    pieces = ["The lake is very wide on all sides.", "It is cold in there all year.", "Nobody swims in it at all."]
    text = " ".join(pieces)
    places = [(text.index(piece), text.index(piece) + len(piece)) for piece in pieces]
    items = {f"q{n}": item(f"q{n}", answers=(text,)) for n in range(400)}
    done, true = [], 0
    for name in items:
        wrong = [chance.random() < 0.4 for _ in pieces]
        true += sum(wrong)
        for who, sees in (("ann", 0.95), ("ben", 0.66), ("cy", 0.95)):
            seen = [place for place, error in zip(places, wrong, strict=True) if error and chance.random() < sees]
            marks = [SpanError(start, end, "Irrelevant", "") for start, end in seen]
            version = project([ITEM]).guideline_version
            done.append(Annotation(name, who, "page", version, None, 0, (0,), tuple(marks)))
    two = [one for one in done if one.annotator != "cy"]

    def share(how: Any, of: list[Annotation]) -> float:
        believed = believed_errors(items, of, QA_FEEDBACK, SEGMENTER) if how == "dawid_skene" else None
        kept = 0
        for name in items:
            mine = [one for one in of if one.item == name]
            record = adjudicated(items[name], mine, QA_FEEDBACK, SEGMENTER, how, believed)
            kept += len(
                {place for place in places for e in record.marked[0].errors if e.start < place[1] and e.end > place[0]}
            )
        return kept / true

    assert share("majority", two) < 0.7 < 0.9 < share("dawid_skene", done) <= 1.0
    assert share("dawid_skene", two) > share("majority", two) + 0.2
