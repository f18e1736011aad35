"""Votes of three people, by hand."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from annotation_toy import item, project

from finegrained_rlhf.annotation.adjudication import (
    Adjudicate,
    How,
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
HOWS: tuple[How, ...] = ("majority", "union", "drawn")
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


def test_a_model_of_annotators_hears_the_careful_where_votes_hear_the_many() -> None:
    """Two careful people and three who guess: votes follow the guesses, the model finds out who they are."""
    pytest.importorskip("crowdkit")
    from finegrained_rlhf.annotation.annotator_model import believed_errors

    chance = random.Random(0)
    text = " ".join((FIRST, SECOND))
    places = [(text.index(piece), text.index(piece) + len(piece)) for piece in (FIRST, SECOND)]
    items = {f"q{n}": item(f"q{n}", answers=(text,)) for n in range(150)}
    items["known"] = item("known", answers=(text,), role="qualification")
    version, done, true = project([ITEM]).guideline_version, [], {}
    for name in items:
        true[name] = [chance.random() < 0.4 for _ in places]
        for who, right in (("ann", 0.95), ("ben", 0.92), ("cy", 0.55), ("dan", 0.55), ("eve", 0.55)):
            says = [error if chance.random() < right else not error for error in true[name]]
            marks = [SpanError(*place, "Irrelevant", "") for place, error in zip(places, says, strict=True) if error]
            done.append(Annotation(name, who, "page", version, None, 0, (0,), tuple(marks)))
    believed = believed_errors(items, done, QA_FEEDBACK, SEGMENTER)
    assert set(believed) == set(items) - {"known"}

    def wrong(how: Any) -> int:
        count = 0
        for name in believed:
            mine = [one for one in done if one.item == name]
            errors = adjudicated(items[name], mine, QA_FEEDBACK, SEGMENTER, how, believed).marked[0].errors
            kept = [any(one.start < end and one.end > start for one in errors) for start, end in places]
            count += sum(a != b for a, b in zip(kept, true[name], strict=True))
        return count

    assert wrong("dawid_skene") < 0.7 * wrong("majority")


@pytest.mark.parametrize(("overlooks", "invents"), [(0.2, 0.05), (0.3, 0.1), (0.3, 0.02)])
def test_items_of_one_and_of_two_people_have_errors_as_often_where_one_is_drawn(
    overlooks: float, invents: float
) -> None:
    """Four people who overlook errors and invent some; errors kept on items of two over those on items of one."""
    chance, rates = random.Random(1), {1: Counter[str](), 2: Counter[str]()}
    version, many = project([ITEM]).guideline_version, 3000
    places = [(TEXT.index(piece), TEXT.index(piece) + len(piece)) for piece in (FIRST, SECOND, THIRD)]
    for number in range(2 * many):
        one, true = item(f"q{number}", answers=(TEXT,)), [chance.random() < 0.25 for _ in places]
        people = chance.sample(("ann", "ben", "cy", "dan"), 1 + number % 2)
        made = []
        for who in people:
            says = [chance.random() < (1 - overlooks if error else invents) for error in true]
            marks = [SpanError(*place, "Irrelevant", "") for place, error in zip(places, says, strict=True) if error]
            made.append(Annotation(one.id, who, "page", version, None, 0, (0,), tuple(marks)))
        for how in HOWS:
            errors = adjudicated(one, made, QA_FEEDBACK, SEGMENTER, how).marked[0].errors
            kept = sum(any(e.start < end and e.end > start for e in errors) for start, end in places)
            rates[len(people)][how] += kept
    ratios = {how: rates[2][how] / rates[1][how] for how in HOWS}
    assert 0.95 < ratios["drawn"] < 1.05, ratios
    assert ratios["majority"] < 0.9 and ratios["union"] > 1.1, ratios
