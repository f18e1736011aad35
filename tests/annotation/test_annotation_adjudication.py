"""Votes of three people, by hand."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import replace
from importlib.util import find_spec
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
HOWS: list[How] = ["majority", "intersection", "union", "drawn"]
HOWS += ["dawid_skene"] if find_spec("crowdkit") else []  # of the extra web
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


def kept_of_two_over_one(overlooks: float, invents: float, seed: int = 1) -> dict[str, float]:
    """Of each rule, errors kept on items of two people over those on items of one, as docs/annotation.md says it.

    4000 items of four sentences, a quarter of them wrong, by one and two of four people in turns; what is wrong in an
    item of one is wrong in the next one, of two.
    """
    chance, version = random.Random(seed), project([ITEM]).guideline_version
    text = f"{TEXT} Boats stop at noon."
    places = [(text.index(piece), text.index(piece) + len(piece)) for piece in (FIRST, SECOND, THIRD, "Boats stop")]
    items = {f"q{number}": item(f"q{number}", answers=(text,)) for number in range(4000)}
    made: dict[str, list[Annotation]] = {}
    true: list[bool] = []
    for number, name in enumerate(items):
        true = true if number % 2 else [chance.random() < 0.25 for _ in places]
        for who in chance.sample(("ann", "ben", "cy", "dan"), 1 + number % 2):
            says = [chance.random() < (1 - overlooks if error else invents) for error in true]
            marks = [SpanError(*place, "Irrelevant", "") for place, error in zip(places, says, strict=True) if error]
            made.setdefault(name, []).append(Annotation(name, who, "page", version, None, 0, (0,), tuple(marks)))
    believed, rates = {}, {how: Counter[int]() for how in HOWS}
    if "dawid_skene" in HOWS:
        from finegrained_rlhf.annotation.annotator_model import believed_errors

        believed = believed_errors(items, [one for rows in made.values() for one in rows], QA_FEEDBACK, SEGMENTER)
    for how in HOWS:
        for name, rows in made.items():
            errors = adjudicated(items[name], rows, QA_FEEDBACK, SEGMENTER, how, believed).marked[0].errors
            rates[how][len(rows)] += sum(any(e.start < end and e.end > start for e in errors) for start, end in places)
    return {how: count[2] / count[1] for how, count in rates.items()}


def committed_ratios() -> dict[tuple[float, float], dict[str, float]]:
    """The table of docs/annotation.md, by overlooked and invented."""
    page = (Path(__file__).parents[2] / "docs" / "annotation.md").read_text("utf-8")
    head, _, *rows = page[page.index("| overlooked, invented |") :].split("\n\n")[0].splitlines()
    columns = [re.findall(r"`(\w+)`", cell) for cell in head.strip("|").split("|")]
    made = {}
    for row in rows:
        setting, *values = (cell.strip() for cell in row.strip("|").split("|"))
        overlooks, invents = map(float, setting.split(", "))
        given = zip(columns[1:], values, strict=True)
        made[overlooks, invents] = {how: float(value) for names, value in given for how in names}
    return made


@pytest.mark.parametrize(("overlooks", "invents"), list(committed_ratios()))
def test_items_of_one_and_of_two_people_have_errors_as_often_where_one_is_drawn(
    overlooks: float, invents: float
) -> None:
    ratios, committed = kept_of_two_over_one(overlooks, invents), committed_ratios()[overlooks, invents]
    assert set(ratios) == set(committed) - ({"dawid_skene"} - set(HOWS))
    assert ratios == pytest.approx({how: committed[how] for how in ratios}, abs=0.006)
    found, false = 0.25 * (1 - overlooks), 0.75 * invents  # of a sentence, by one person
    both = (found * (1 - overlooks) + false * invents) / (found + false)
    for how, expected in {"majority": both, "intersection": both, "union": 2 - both, "drawn": 1.0}.items():
        assert ratios[how] == pytest.approx(expected, abs=0.05), (how, ratios)
