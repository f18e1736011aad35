"""From exports to annotations: the rules, broken exports, and that nothing is lost on the way to records and back."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from annotation_tools import label_studio_export, potato_state
from annotation_toy import ANSWER, OTHER, export, item, items_of, project, record_task, span, task
from hypothesis import given
from hypothesis import strategies as st

from finegrained_rlhf.annotation.adjudication import Adjudicate
from finegrained_rlhf.annotation.annotations import annotations_of, disjoint, located, utf16_offsets, write_annotations
from finegrained_rlhf.annotation.project import Project
from finegrained_rlhf.annotation.reading import Imported, ReadAnnotations, import_export
from finegrained_rlhf.annotation.tools import TOOLS, tool_named
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.feedback.reading import read_feedback, write_feedback
from finegrained_rlhf.feedback.records import SpanError
from finegrained_rlhf.feedback.taxonomy import QA_FEEDBACK

TOY = project()


def imported(of: Project, *exports: Any, strict: bool = False) -> Imported:
    found = Imported()
    for one in exports:
        import_export(one, of, "page", strict, found)
    return found


def one_task(strict: bool = False, **changes: Any) -> Imported:
    return imported(TOY, export(TOY, "ann", [task(TOY, "ann", "q1", **changes)]), strict=strict)


def test_an_export_becomes_an_annotation_in_the_items_own_order_of_answers() -> None:
    fact = span(ANSWER, "stays warm", "Wrong-Grounding", evidence=[[1, 2]])
    gap = {"type": "Missing-Answer", "passage": 1, "sentences": [1]}
    order = TOY.annotators["ann"][0].order
    found = one_task(
        spans=[fact], no_error=False, missing=[gap], nothing_missing=False, correction=OTHER, ranking=[[1], [0]]
    )
    (one,) = found.annotations
    assert (one.answer, one.errors[0].evidence, ANSWER[one.errors[0].start : one.errors[0].end]) == (
        0,
        ((1, 2),),
        "stays warm",
    )
    assert one.missing[0].sentence_ids == (1,) and one.correction == OTHER and one.seconds == 12.5
    assert one.ranking == ((order[1],), (order[0],)) and one.preferences == ((1,) if order[1] == 0 else (2,))
    assert not +found.repairs and not +found.flags


@pytest.mark.parametrize(
    ("marked", "expected", "repair"),
    [
        (lambda s: {"start": utf16(s["start"]), "end": utf16(s["end"])}, "stays warm", "offsets in UTF-16 units"),
        (lambda s: {"start": 0, "end": 5}, "stays warm", "found by its words"),
        (lambda s: {"text": "Its water stays", "start": 3, "end": 4}, "Its  water stays", "found by its words"),
        (lambda s: {"start": s["start"] - 1, "text": " stays warm"}, "stays warm", "white space trimmed"),
    ],
)
def test_what_is_put_right_is_counted(marked: Callable[..., Any], expected: str, repair: str) -> None:
    base = span(ANSWER, "stays warm", "Unverifiable")
    found = one_task(spans=[{**base, **marked(base)}], no_error=False)
    (error,) = found.annotations[0].errors
    assert ANSWER[error.start : error.end] == expected and found.repairs[repair] == 1


def utf16(offset: int) -> int:
    return len(ANSWER[:offset].encode("utf-16-le")) // 2


def test_marks_that_overlap() -> None:
    wide = span(ANSWER, "Its  water stays warm", "Irrelevant")
    found = one_task(
        spans=[
            span(ANSWER, "The lake 🌊 is wide", "Irrelevant"),
            span(ANSWER, "is wide, and 👩‍👩‍👧 swim", "Redundant", note="again"),
            wide,
            dict(wide),
            span(ANSWER, "stays warm. هي دافئة", "Unverifiable"),
        ],
        no_error=False,
    )
    marks = {(ANSWER[e.start : e.end], e.error_type, e.explanation) for e in found.annotations[0].errors}
    assert marks == {
        ("The lake 🌊 is wide, and 👩‍👩‍👧 swim", "Redundant", "again"),
        ("Its  water stays warm", "Irrelevant", ""),
        (". هي دافئة", "Unverifiable", ""),
    }
    assert +found.repairs == Counter(
        {
            "duplicates merged": 1,
            "overlapping spans of one category united": 1,
            "cut by a category of precedence": 1,
        }
    )


def test_what_looks_odd_is_flagged_and_kept() -> None:
    found = one_task(spans=[span(ANSWER, "stays warm", "Wrong-Grounding")], no_error=False)
    assert +found.flags == Counter(
        {"Wrong-Grounding without evidence": 1, "correction equal to the answer, though errors are marked": 1}
    )
    found = one_task(correction=OTHER)
    assert +found.flags == Counter({"correction unlike the answer, though no error is marked": 1})


def test_drafts_and_skipped_tasks_count_as_nothing(tmp_path: Path) -> None:
    of = project([item("q1"), item("q2"), item("q3")])
    rows = [
        task(of, "ann", "q1", status="draft", spans=None),
        task(of, "ann", "q2", status="skipped"),
        task(of, "ann", "q3"),
    ]
    found = imported(of, export(of, "ann", rows))
    assert found.drafts == 1 and [one.skipped for one in found.annotations] == [True, False]
    write_annotations(tmp_path / "a.jsonl", found.annotations)
    assert [one.item for one in annotations_of(tmp_path / "a.jsonl", of)] == ["q3"]


def test_preferences_pair_by_pair_and_the_ranking_of_the_same_say_the_same() -> None:
    of = project([item("q1", answers=("a", "b", "c"))])
    ranked = imported(of, export(of, "ann", [task(of, "ann", "q1", ranking=[[2], [0, 1]])])).annotations[0]
    paired = task(of, "ann", "q1", ranking=None, preferences=[0, 2, 2])
    assert imported(of, export(of, "ann", [paired])).annotations[0].preferences == ranked.preferences
    partial = task(of, "ann", "q1", ranking=None, preferences=[None, 2, None])
    assert sorted(map(str, imported(of, export(of, "ann", [partial])).annotations[0].preferences)).count("None") == 2


def broken(**changes: Any) -> dict[str, Any]:
    return export(TOY, "ann", [task(TOY, "ann", "q1", **changes)])


MARK = span(ANSWER, "stays warm", "Unverifiable")
BROKEN: list[tuple[Any, str]] = [
    ([], "expected an object"),
    ({**broken(), "format": "other"}, "expected 'finegrained-annotation-export/1'"),
    ({**broken(), "project": "mine"}, "expected project 'toy'"),
    ({**broken(), "annotator": "zoe"}, "has no annotator 'zoe'"),
    ({**broken(), "guideline_version": "0"}, "other guidelines"),
    ({**broken(), "tasks": {}}, "expected a list"),
    (broken(item="q9"), "task 'q9'.*not among this annotator's tasks"),
    (export(TOY, "ann", [task(TOY, "ann", "q1")] * 2), "task 'q1'.*occurs twice"),
    (broken(hash="0" * 16), "its text is not the one that was given out"),
    (broken(order=[0]), "field order: expected"),
    (broken(status="finished"), "field status: expected one of done, draft, skipped"),
    (broken(seconds=-1), "field seconds: expected seconds"),
    (broken(spans=[MARK]), "'no error' is ticked, and spans are marked"),
    (broken(no_error=False), "'no error' is not ticked"),
    (broken(spans=[{**MARK, "type": "Rude"}], no_error=False), r"field spans\[0\].type: unknown type 'Rude'"),
    (broken(spans=[{**MARK, "text": "freezes"}], no_error=False), r"spans\[0\].*'freezes' stands in no place"),
    (broken(spans=[{**MARK, "start": 0, "end": 1, "text": "wa"}], no_error=False), "stands in 2 places"),
    (broken(spans=[{**MARK, "start": 3, "end": 4, "text": " "}], no_error=False), r"spans\[0\].*covers no text"),
    (broken(spans=[{**MARK, "evidence": [[2, 1]]}], no_error=False), "there is no sentence 1 of passage 2"),
    (broken(missing=[{"type": "Missing-Answer", "passage": 1, "sentences": [9]}]), "there is no sentence 9"),
    (broken(nothing_missing=False), "'nothing is missing' is not ticked"),
    (broken(correction=None), "field correction: expected"),
    (broken(ranking=[[0]]), "expected each of the 2 answers once"),
    (broken(ranking=None, preferences=[3]), r"preferences\[0\]: expected 0, 1, 2 or null"),
]


@pytest.mark.parametrize(("bad", "problem"), BROKEN, ids=range(len(BROKEN)))
def test_a_broken_export_is_one_clear_error_and_nothing_is_written(bad: Any, problem: str, tmp_path: Path) -> None:
    TOY.write(tmp_path)
    write_json(tmp_path / "ann.json", bad)
    job = ReadAnnotations([str(tmp_path / "ann.json")], str(tmp_path), str(tmp_path / "out.jsonl"))
    with pytest.raises(DataError, match=problem) as caught:
        job.run()
    assert "ann.json" in str(caught.value) and not (tmp_path / "out.jsonl").exists()
    if "tasks" in bad and re.search("field (spans|missing|order|hash)", str(caught.value)):
        assert "project toy, annotator ann, task 'q1'" in str(caught.value)


def test_strict_reading_refuses_what_overlaps() -> None:
    twice = [span(ANSWER, "stays warm", "Unverifiable"), span(ANSWER, "warm", "Irrelevant")]
    with pytest.raises(DataError, match="overlaps"):
        one_task(strict=True, spans=twice, no_error=False)
    same = [span(ANSWER, "stays warm", "Redundant"), span(ANSWER, "warm", "Irrelevant")]
    with pytest.raises(DataError, match="overlap"):
        one_task(strict=True, spans=same, no_error=False)


@given(text=st.text(min_size=1, max_size=60), data=st.data())
def test_a_span_is_found_again_in_units_of_any_kind(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    units = {place: unit for unit, place in utf16_offsets(text).items()}
    if not text[start:end].strip():
        return
    repairs: Counter[str] = Counter()
    a, b = located(text, start, end, text[start:end], repairs)
    assert text[a:b] == text[start:end].strip() and start <= a < b <= end
    if text[units[start] : units[end]] != text[start:end]:  # in characters it would be something else
        assert located(text, units[start], units[end], text[start:end], repairs) == (a, b)


@given(
    st.text(alphabet="ab c", min_size=1, max_size=30),
    st.lists(
        st.tuples(st.integers(0, 29), st.integers(1, 12), st.sampled_from(["Irrelevant", "Redundant", "Unverifiable"]))
    ),
)
def test_disjoint_spans_cover_what_was_marked(text: str, marks: list[tuple[int, int, str]]) -> None:
    spans = [SpanError(a % len(text), min(len(text), a % len(text) + n), kind) for a, n, kind in marks]
    spans = [s for s in spans if text[s.start : s.end].strip()]
    made = disjoint(spans, text, QA_FEEDBACK, False, Counter())
    covered = [c for s in made for c in range(s.start, s.end)]
    assert len(covered) == len(set(covered))
    wanted = {c for s in spans for c in range(s.start, s.end) if not text[c].isspace()}
    assert {c for c in covered if not text[c].isspace()} == wanted
    first = {c for s in spans if s.error_type != "Unverifiable" for c in range(s.start, s.end)}
    assert all(s.error_type != "Unverifiable" for s in made for c in range(s.start, s.end) if c in first)


@pytest.mark.parametrize("tool", TOOLS)
def test_records_come_back_key_for_key(tool: str, tmp_path: Path) -> None:
    from feedback_samples import record

    first = "It is cold now and then. It  is wide 🌊 on all sides."
    rows = [
        record(first, [("It  is wide 🌊 on all sides", "Irrelevant"), ("cold", "Unverifiable")], name="a"),
        record("It is wide.", name="b", preferences=(1, 1, 1, 1, 1, 1)),
        record("It is wide.", name="c", preferences=(1, 2, 1, 1, 1, 0)),  # a cycle, which no ranking says
    ]
    rows = [
        replace(r, feedback=replace(r.feedback, errors=tuple(replace(e, explanation="x") for e in r.feedback.errors)))
        for r in rows
        if r.feedback
    ]
    round_trip(rows, tmp_path, tool)


def round_trip(records: list[Any], directory: Path, tool: str) -> None:
    """Tasks of records, an export that marks exactly them, annotations, and records again: byte for byte."""
    taxonomy = QA_FEEDBACK if tool == "page" else replace(QA_FEEDBACK, comparison="pairs")
    of = Project("trip", taxonomy, {i.id: i for i in items_of(records)}, project(items_of(records)).annotators)
    of.write(directory / "tasks")
    payload, done = of.payload("ann"), [record_task(of, "ann", r) for r in records]
    made = {
        "page": lambda: export(of, "ann", done),
        "label_studio": lambda: label_studio_export(payload, done),
        "potato": lambda: potato_state(payload, done),
    }
    tool_named(tool).write_tasks(directory, payload)
    write_json(directory / "ann.json", made[tool]())
    files = {"ann": str(directory / "ann.json")}
    ReadAnnotations(files, str(directory / "tasks"), str(directory / "a.jsonl"), tool=tool).run()
    Adjudicate(
        annotations=str(directory / "a.jsonl"),
        tasks=str(directory / "tasks"),
        output=str(directory / "again.json"),
        provenance=False,
        segmenter="rules",
    ).run()
    write_feedback(directory / "before.json", records)
    before, after = (json.loads((directory / name).read_text()) for name in ("before.json", "again.json"))
    by_question = {json.dumps(row["question"]) + row.get("id", ""): row for row in after}
    assert [by_question[json.dumps(row["question"]) + row.get("id", "")] for row in before] == before
    assert read_feedback(directory / "again.json")


@pytest.mark.parametrize("tool", TOOLS)
def test_the_published_records_come_back_key_for_key(tool: str, shared_data: Path, tmp_path: Path) -> None:
    records = read_feedback(shared_data / "qa_feedback" / "dev_feedback.json")
    assert len(records) == 400
    round_trip(records, tmp_path, tool)
