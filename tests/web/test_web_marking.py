"""Marking together without a browser: what is kept, how devices are merged, who gets what, and what comes of it."""

from __future__ import annotations

import html
import itertools
import json
import random
import re
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")

from annotation_toy import ANSWER, item, span, task
from annotation_toy import export as exported
from marking_toy import Office, change

from finegrained_rlhf.annotation.adjudication import Adjudicate
from finegrained_rlhf.annotation.measure_agreement import MeasureAgreement
from finegrained_rlhf.annotation.reading import ReadAnnotations
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.feedback.labels import Suggestion
from finegrained_rlhf.feedback.reading import read_feedback
from finegrained_rlhf.web.marking import figures, outcome
from finegrained_rlhf.web.marking.states import exported_task, merged, state_of, steps_back

MARK = {"start": 0, "end": 3, "type": "Irrelevant", "evidence": [], "note": ""}
SUGGESTED = (Suggestion(0, 3, "Irrelevant", 0.8, "m@1"),)


def test_a_change_is_kept_once_however_often_and_in_whatever_batches_it_is_sent(tmp_path: Path) -> None:
    office = Office(tmp_path)
    words = [change("q1", {"correction": "The lake"[:n]}, {"correction": "The lake"[: n - 1]}) for n in range(1, 9)]
    sent = random.Random(0)
    for first in range(0, 8, 2):
        for _ in range(3):
            office.send("ann", *words[max(0, first - sent.randrange(4)) : first + 2])
    state, _ = office.marking.work.states(office.key)["ann"]["q1"]
    assert state["correction"] == "The lake" and office.marking.work.kept(office.key, "ann")["q1"]["version"] == 8


def test_two_devices_are_merged_mark_by_mark_in_either_order() -> None:
    start = {
        "spans": [MARK],
        "missing": {"1,1": "Missing-Answer"},
        "places": [None, None],
        "seconds": 4,
        "noError": False,
    }
    other = {**MARK, "start": 5, "end": 8}
    first = {"spans": [MARK, other], "places": [1, None], "seconds": 10}
    second = {
        "spans": [{**MARK, "note": "why"}],
        "missing": {"1,2": "Missing-Answer"},
        "places": [None, 2],
        "seconds": 6,
    }
    changes = [({name: start[name] for name in one}, one) for one in (first, second)]
    for order in itertools.permutations(changes):
        state: dict[str, Any] = start
        for before, update in order:
            state = merged(state, before, update)
        assert state["spans"] == [{**MARK, "note": "why"}, other] and state["places"] == [1, 2]
        assert state["missing"] == {"1,2": "Missing-Answer"} and state["seconds"] == 12
    doubled = merged(start, {"spans": []}, {"spans": [MARK]})
    assert doubled["spans"] == [MARK]
    assert merged(merged(start, {"spans": [MARK]}, {"spans": []}), {"spans": [MARK]}, {"spans": [MARK, other]})[
        "spans"
    ] == [other]


def test_typed_keys_are_one_step_back_and_other_changes_one_each() -> None:
    typed = [
        {"at": 60 + n / 3, "before": {"correction": "a" * n, "seconds": n}, "update": {"correction": "a" * (n + 1)}}
        for n in range(5)
    ]
    later = {"at": 90.0, "before": {"correction": "aaaaa"}, "update": {"correction": "b"}}
    marked = {"at": 90.5, "before": {"spans": []}, "update": {"spans": [MARK]}}
    noted = [
        {"at": 91.0, "before": {"spans": [{**MARK, "note": a}]}, "update": {"spans": [{**MARK, "note": b}]}}
        for a, b in itertools.pairwise(["", "n", "no", "not"])
    ]
    steps = steps_back([*typed, later, marked, *noted])
    assert steps == [{"correction": ""}, {"correction": "aaaaa"}, {"spans": []}, {"spans": [MARK]}]


def test_an_export_is_read_back_as_the_state_it_came_from(tmp_path: Path) -> None:
    office = Office(tmp_path)
    payload = office.marking.work.payload(office.key, "ann")
    one = next(row for row in payload["tasks"] if row["item"] == "q1")
    text = one["answers"][one["marked"]]
    wide = len("The lake 🌊".encode("utf-16-le")) // 2
    state: dict[str, Any] = {
        "spans": [{**MARK, "end": wide, "evidence": [[1, 1]]}],
        "missing": {"1,2": "Missing-Answer"},
        "status": "done",
    }
    state |= {"correction": text, "places": [1] * len(one["answers"]), "seconds": 3.2}
    row = exported_task(one, state, payload["taxonomy"])
    again = state_of(row, one)
    assert {name: again[name] for name in state} == state
    assert row["spans"][0]["text"] == text[row["spans"][0]["start"] : row["spans"][0]["end"]]
    with pytest.raises(DataError, match="another text"):
        state_of({**row, "hash": "0"}, one)


def test_files_of_the_offline_page_are_taken_in_and_come_out_key_for_key(tmp_path: Path) -> None:
    office = Office(tmp_path)
    rows = [
        task(office.project, "ann", "q1", no_error=False, spans=[span(ANSWER, "🌊 is wide", "Irrelevant", note="why")]),
        task(office.project, "ann", "q2", status="draft")
        if "q2" in mine(office, "ann")
        else task(office.project, "ann", "q3"),
    ]
    document = exported(office.project, "ann", rows)
    said = office.owner.write(f"{office.here}/import", export=json.dumps(document))
    assert said.status_code == 200 and "2 tasks of ann were read" in said.text
    again = office.people["ann"].get(f"{office.here}/export.json").json()
    assert again | {"tasks": []} == document | {"tasks": []}
    assert sorted(again["tasks"], key=lambda one: one["item"]) == sorted(rows, key=lambda one: one["item"])
    for broken in ("{", "[]", json.dumps({**document, "project": "x"}), json.dumps({**document, "annotator": "eve"})):
        assert office.owner.write(f"{office.here}/import", export=broken).status_code == 422


def mine(office: Office, name: str) -> list[str]:
    return [one["item"] for one in office.marking.work.payload(office.key, name)["tasks"]]


def test_items_are_dealt_out_to_who_comes_later_and_never_two_people_get_a_single_one(tmp_path: Path) -> None:
    items = [item(f"q{n}", role="overlap" if n < 2 else "single", suggestions=SUGGESTED) for n in range(14)]
    office = Office(tmp_path, items=items)
    begun = [name for name in mine(office, "ann") if name not in ("q0", "q1")][0]
    office.send("ann", change(begun, {"noError": True}))
    office.invited("cy", "annotator")
    assert office.people["ann"].get(office.here + "/work").status_code == 200
    office.owner.write(office.here, action="join", name="cy")
    dealt = {name: mine(office, name) for name in ("ann", "ben", "cy")}
    single = [name for names in dealt.values() for name in names if name not in ("q0", "q1")]
    assert sorted(single) == sorted(f"q{n}" for n in range(2, 14)) and begun in dealt["ann"]
    assert all({"q0", "q1"} <= set(names) for names in dealt.values()) and 3 <= len(dealt["cy"]) - 2 <= 4
    office.owner.write(office.here, action="release", name="ann")
    assert [name for name in mine(office, "ann") if name not in ("q0", "q1")] == [begun]
    left = [name for who in ("ann", "ben", "cy") for name in mine(office, who) if name not in ("q0", "q1")]
    assert sorted(left) == sorted(f"q{n}" for n in range(2, 14))


def test_suggestions_stand_on_single_items_alone_and_what_became_of_them_is_recorded(tmp_path: Path) -> None:
    items = [item("q1", role="overlap", suggestions=SUGGESTED), item("q2", suggestions=SUGGESTED)]
    office = Office(tmp_path, items=items, people=("ann",))
    shown = {one["item"]: one["suggestions"] for one in office.marking.work.payload(office.key, "ann")["tasks"]}
    assert shown["q1"] == [] and len(shown["q2"]) == 1
    office.send(
        "ann",
        change("q2", {"spans": [MARK], "edited": [0], "nothingMissing": True, "places": [1, 1], "status": "done"}),
    )
    export = office.people["ann"].get(f"{office.here}/export.json").json()
    assert export["tasks"][0]["suggestions"] == {"shown": 1, "accepted": 1, "refused": 0, "edited": 1}
    done, problems = figures.finished(office.marking.work, office.key, office.marking.work.project(office.key))
    assert (done[0].suggestions_shown, done[0].suggestions_accepted, problems) == (1, 1, [])


def test_who_has_to_qualify_sees_nothing_else_until_somebody_lets_him_in(tmp_path: Path) -> None:
    office = Office(tmp_path, items=[item("q0", role="qualification"), item("q1", role="overlap"), item("q2")])
    assert mine(office, "ann") == ["q0"]
    office.finish("ann", "q0")
    assert "Admit after qualification" in office.owner.get(office.here).text
    office.owner.write(office.here, action="admit", name="ann")
    assert len(mine(office, "ann")) >= 2 and mine(office, "ben") == ["q0"]
    assert office.marking.measured(office.key).figures["items"] == 0  # qualification counts in nobody's agreement


def disagreeing(tmp_path: Path, count: int = 6, people: tuple[str, ...] = ("ann", "ben")) -> Office:
    """Two people, of whom the second marks half of what the first one marks, and single items of each."""
    items = [item(f"q{n}", role="overlap" if n < count else "single") for n in range(count + 4)]
    office = Office(tmp_path, items=items, people=people)
    for place, name in enumerate(people):
        for number, one in enumerate(mine(office, name)):
            there = place == 0 or int(one[1:]) % 2 == 0
            office.finish(name, one, [(0, 19, "Irrelevant")] if there else [], seconds=20 + number)
    return office


def test_a_page_is_drawn_again_when_a_training_ends(tmp_path: Path) -> None:
    office = Office(tmp_path)
    training = outcome.Training(office.key, "relevance", "run")
    office.marking.trainings.made.append(training)
    before = office.owner.get(f"{office.here}/live").json()
    assert before["running"] and office.owner.get(f"{office.here}/live").json() == before
    assert html.escape(before["version"]) in office.owner.get(office.here).text
    training.status = 0
    after = office.owner.get(f"{office.here}/live").json()
    assert not after["running"] and after["version"] != before["version"]


@pytest.mark.parametrize(("count", "all_learnt_from"), [(9, True), (10, False)])
def test_of_few_finished_items_none_is_held_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, all_learnt_from: bool
) -> None:
    names, started = [f"q{n}" for n in range(count)], []

    def ran(command: list[str], log: Path) -> int:
        log.write_text("done")
        started.append(command)
        return 0

    monkeypatch.setattr(outcome, "run_logged", ran)
    office = Office(tmp_path, items=[item(name) for name in names], people=("ann",))
    for name in names:
        office.finish("ann", name)
    (office.directory / "encoder").mkdir()
    (office.directory / "encoder" / "config.json").write_text("{}")
    office.owner.write(office.here, action="train", kind="relevance", model="encoder", run="new")
    (training,) = office.marking.trainings.made
    while training.status is None:
        time.sleep(0.01)
    assert ("held_out=0" in started[0]) == all_learnt_from


def test_what_is_written_is_what_the_commands_make_of_the_exports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    office = disagreeing(tmp_path)
    assert "Written to tasks_marked" in office.owner.write(office.here, action="write").text
    marked = office.directory / "tasks_marked"
    exports = [str(marked / f"export_{n}.json") for n in (1, 2)]
    for tasks in (marked, office.directory / "tasks"):
        ReadAnnotations(exports=exports, tasks=str(tasks), output=str(tmp_path / "a.jsonl")).run()
        assert (tmp_path / "a.jsonl").read_text() == (marked / "annotations.jsonl").read_text()
    Adjudicate(annotations=str(tmp_path / "a.jsonl"), tasks=str(marked), output=str(tmp_path / "f.json")).run()
    assert (tmp_path / "f.json").read_text() == (marked / outcome.FEEDBACK).read_text()
    offline = MeasureAgreement(
        annotations=str(tmp_path / "a.jsonl"), tasks=str(marked), output=str(tmp_path / "m.json"), draws=figures.DRAWS
    ).run()
    live = json.loads((marked / "agreement.json").read_text())
    assert {name: offline[name] for name in live} == json.loads(json.dumps(live))
    assert live["labels"]["relevance"]["kappa"]["value"] < 1
    (marked / "mine.txt").write_text("kept")
    refused = office.owner.write(office.here, action="write")
    assert refused.status_code == 422 and (marked / "mine.txt").exists()


def test_the_rule_is_chosen_and_shows_what_it_keeps_of_items_that_one_or_several_saw(tmp_path: Path) -> None:
    office = disagreeing(tmp_path)
    made, project = office.marking.measured(office.key), office.marking.work.project(office.key)
    kept = {row["rule"]: row["several"] for row in figures.densities(made, project)}
    assert kept["union"] > kept["majority"] == kept["intersection"] > 0  # of two, more than half is both
    assert "of two: both" in office.owner.get(office.here).text
    office.owner.write(office.here, action="rule", rule="union")
    office.owner.write(office.here, action="write")
    feedback = read_feedback(office.directory / "tasks_marked" / outcome.FEEDBACK, project.taxonomy)
    assert sum(bool(record.feedback.errors) for record in feedback if record.id in {f"q{n}" for n in range(6)}) == 6


def test_a_reviewer_decides_mark_by_mark_and_with_reasons(tmp_path: Path) -> None:
    office = disagreeing(tmp_path)
    rita, page = office.people["rita"], office.people["rita"].get(f"{office.here}/review?item=q1").text
    assert "by <bdi>ann</bdi> of 2" in page and "stays 0-0-18-Irrelevant" in page
    seen = json.dumps(["0-0-18-Irrelevant"])
    fields = {
        "stays 0-0-18-Irrelevant": "yes",
        "reason 0-0-18-Irrelevant": "it is beside the point",
        "correction": "ben",
    }
    assert rita.write(f"{office.here}/review?item=q1", seen="[]", **fields).status_code == 409
    lacking = {"correction": "ben"}
    assert rita.write(f"{office.here}/review?item=q1", seen=seen, **lacking).status_code == 409
    assert rita.write(f"{office.here}/review?item=q1", seen=seen, **fields).status_code == 200
    office.owner.write(office.here, action="write")
    project = office.marking.work.project(office.key)
    record = {r.id: r for r in read_feedback(office.directory / "tasks_marked" / outcome.FEEDBACK, project.taxonomy)}[
        "q1"
    ]
    (error,) = record.marked[0].errors
    assert error.explanation == "it is beside the point" and error.annotators == ("ann", "rita")
    office.send("ben", change("q1", {"spans": [{**MARK, "end": 19, "type": "Redundant"}], "noError": False}))
    stale = figures.records(office.marking.work, office.key, project, office.marking.measured(office.key))
    assert all(e.explanation != "it is beside the point" for r in stale for f in r.marked.values() for e in f.errors)


def test_people_who_drift_raise_an_alarm_and_steady_ones_seldom() -> None:
    chance = random.Random(1)
    steady = [[chance.random() < 0.8 for _ in range(40)] for _ in range(300)]
    alarms = sum(figures.drifts([float(value) for value in row]) for row in steady)
    assert alarms <= 9  # 1% of 300 is 3; more than 9 has a probability of .001
    drifting = [[chance.random() < (0.95 if n < 30 else 0.3) for n in range(40)] for _ in range(100)]
    assert sum(figures.drifts([float(value) for value in row]) for row in drifting) >= 80
    assert not figures.drifts([1.0] * 19) and not figures.drifts([1.0] * 40)


def test_the_course_of_agreement_is_drawn_and_goes_on(tmp_path: Path) -> None:
    office = Office(tmp_path, items=[item(f"q{n}", role="overlap") for n in range(3)])
    drawn = []
    for n in range(3):
        office.finish("ann", f"q{n}", [(0, 19, "Irrelevant")])
        office.finish("ben", f"q{n}", [(0, 19, "Irrelevant")] if n else [])
        page = office.owner.get(office.here).text
        paths = re.findall(r'<svg viewBox="0 0 96 22" class="spark".*?<path d="M([^"]*)"', page)
        drawn.append([[float(point.split()[1]) for point in path.split("L")] for path in paths])
    assert drawn[0] == [] and [len(line) for line in drawn[1]] == [2, 2]
    for line in drawn[2]:  # from the bottom up: they agree since the second item
        assert len(line) == 3 and line == sorted(line, reverse=True) and line[0] > line[1] > line[2]
