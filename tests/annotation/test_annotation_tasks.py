"""Tasks of outputs: who sees what, in which order, chosen by what."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from finegrained_rlhf.annotation.items import AnnotationItem, RandomSelection, choose_items
from finegrained_rlhf.annotation.project import MakeAnnotationTasks, Project
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.labels import Suggestion
from finegrained_rlhf.feedback.outputs import OutputRecord, write_outputs
from finegrained_rlhf.feedback.reading import write_feedback
from finegrained_rlhf.feedback.taxonomy import Taxonomy


@dataclass(frozen=True)
class Longest:
    """Wants the longest answers."""

    name: str = "longest"

    def order(self, items: Sequence[AnnotationItem]) -> Sequence[int]:
        return sorted(range(len(items)), key=lambda i: -len(items[i].answers[0]))


@dataclass(frozen=True)
class FirstWord:
    """Suggests the first word."""

    def suggest(self, items: Sequence[AnnotationItem], taxonomy: Taxonomy) -> Sequence[tuple[Suggestion, ...]]:
        return [(Suggestion(0, 2, "Irrelevant", 0.5, "toy@1"),) for _ in items]


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    passage = Passage("", "Lake", ("It is wide. It is cold. It is old.",))
    records = [
        OutputRecord(f"q{i}", f"Why {i}?", (passage,), ("Gold.",), "", (f"It {'is ' * (i + 1)}so.", "No.", "Yes."))
        for i in range(40)
    ]
    write_outputs(tmp_path / "outputs.jsonl", records)
    return tmp_path / "outputs.jsonl"


def make(outputs: Path, name: str = "tasks", **changes: Any) -> Project:
    values = {"outputs": str(outputs), "output_dir": str(outputs.parent / name), "annotators": ["ann", "ben", "cleo"]}
    return MakeAnnotationTasks(**{**values, **changes}).run()


def test_everybody_sees_the_overlap_and_the_rest_is_dealt_out(outputs: Path) -> None:
    made = make(outputs, overlap=0.25)
    shared = {name for name, one in made.items.items() if one.role == "overlap"}
    lists = {who: [row.item for row in rows] for who, rows in made.annotators.items()}
    assert len(shared) == 10 and all(shared <= set(found) for found in lists.values())
    single = [name for found in lists.values() for name in found if name not in shared]
    assert sorted(single) == sorted(set(made.items) - shared) and [len(f) for f in lists.values()] == [20, 20, 20]
    orders = {row.order for rows in made.annotators.values() for row in rows}
    assert len(orders) == 6 and lists["ann"] != sorted(lists["ann"])
    assert len(next(iter(made.items.values())).passages[0].sentences) == 3
    again = make(outputs, "again", project="tasks", overlap=0.25)
    assert again == made == Project.read(outputs.parent / "tasks")
    assert make(outputs, "other", project="tasks", overlap=0.25, seed=1) != made
    for number in (1, 2, 3):
        assert len(list((outputs.parent / f"tasks/annotator_{number}").glob("annotate_*.html"))) == 1
    guide = (outputs.parent / "tasks/guidelines.html").read_text()
    assert "Repetitive" in guide and "name the evidence" in guide


def test_a_strategy_never_chooses_everything_and_probabilities_are_kept(outputs: Path) -> None:
    made = make(outputs, count=20, select=Longest(), overlap=0.2)
    by = {name: [one for one in made.items.values() if one.strategy == name] for name in ("random", "longest")}
    assert (len(by["random"]), len(by["longest"])) == (6, 14)
    assert {one.probability for one in by["random"]} == {6 / 40} and {one.probability for one in by["longest"]} == {1.0}
    longest = sorted(made.items.values(), key=lambda one: -len(one.answers[0]))[:10]
    assert sum(one.strategy == "longest" for one in longest) >= 5
    assert {one.strategy for one in made.items.values() if one.role == "overlap"} == {"random"}
    with pytest.raises(ConfigError, match="random_share: expected 0.3 to 1"):
        choose_items(list(made.items.values()), 5, RandomSelection(), 0.1, 0)


def test_suggestions_are_on_half_of_the_single_items_alone(outputs: Path) -> None:
    made = make(outputs, overlap=0.5, preannotate=FirstWord())
    having = [one for one in made.items.values() if one.suggestions]
    assert len(having) == 10 and {one.role for one in having} == {"single"}
    task = next(t for t in made.payload("ann")["tasks"] + made.payload("ben")["tasks"] if t["suggestions"])
    assert task["suggestions"][0]["type"] == "Irrelevant"


def test_qualification_items_come_first_for_everybody(outputs: Path) -> None:
    from feedback_samples import record

    file = outputs.parent / "known.json"
    write_feedback(file, [record("It is cold.", name="k1"), record("It is wet.", name="k2")])
    made = make(outputs, qualification=str(file))
    assert all({row.item for row in rows[:2]} == {"k1", "k2"} for rows in made.annotators.values())
    write_feedback(file, [record("It is cold.", name="q1")])
    with pytest.raises(DataError, match="'q1' is among the outputs too"):
        make(outputs, "again", qualification=str(file))
    assert not (outputs.parent / "again").exists()


def test_what_is_not_asked_is_not_shown(outputs: Path) -> None:
    ranking = Taxonomy("ranks", {}, preferences=True)
    assert {t["marked"] for t in make(outputs, "r", taxonomy=ranking).payload("ann")["tasks"]} == {None}
    marks = Taxonomy("marks", {"tone": {"types": {"Rude": {}}}}, preferences=False)
    assert all(len(one.answers) == 1 for one in make(outputs, "m", taxonomy=marks, reference=False).items.values())


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"annotators": []}, "one name or more"),
        ({"annotators": ["ann", "ann"]}, "each once"),
        ({"annotators": ["ann", "../x"]}, r"annotators: '../x' is a path; expected a name without / and"),
        ({"annotators": ["a\\b"]}, "is a path"),
        ({"annotators": [".."]}, "'..' is a path"),
        ({"overlap": 1.5}, "overlap: expected at least 0 and at most 1"),
        ({"tool": "paper"}, "tool: expected one of"),
        ({"select": object()}, "no selection of items"),
        ({"count": 0}, "count: expected at least 1"),
    ],
)
def test_bad_settings_are_refused(outputs: Path, change: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        make(outputs, **change)
    assert sorted(path.name for path in outputs.parent.iterdir()) == ["outputs.jsonl"]


def test_empty_outputs_are_left_out_and_counted(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_outputs(outputs, [OutputRecord("a", "Q?", (), (), "", ("x",)), OutputRecord("b", "Q?", (), (), "", (" ",))])
    assert list(make(outputs).items) == ["a"] and "1 of 2 records left out" in capsys.readouterr().out
    write_outputs(outputs, [OutputRecord("b", "Q?", (), (), "", (" ",))])
    with pytest.raises(DataError, match="nothing to annotate"):
        make(outputs, "again")


def test_a_project_has_an_id_of_its_own_and_keeps_it_where_it_is_made_anew(outputs: Path) -> None:
    made = make(outputs)
    assert make(outputs, "other").id != made.id == Project.read(outputs.parent / "tasks").id
    again = make(outputs, overlap=0.5, annotators=["ann", "dora"])
    assert again.id == made.id and again.payload("dora")["project_id"] == made.id
    manifest = outputs.parent / "tasks/manifest.json"
    row = json.loads(manifest.read_text(encoding="utf-8"))
    del row["project_id"]  # as before projects had ids
    manifest.write_text(json.dumps(row), encoding="utf-8")
    old = Project.read(outputs.parent / "tasks").id
    assert old == Project.read(outputs.parent / "tasks").id != made.id
    assert make(outputs, overlap=0.5, annotators=["ann", "dora"]).id == old
    manifest.write_text("{", encoding="utf-8")
    assert make(outputs).id not in (old, made.id)


@pytest.mark.parametrize(
    "place", ["annotator_1/annotation_output/ann/user_state.json", "annotator_1/x-ann.json", "run.json"]
)
def test_tasks_made_anew_remove_nothing_that_people_did(outputs: Path, place: str) -> None:
    make(outputs)
    work = outputs.parent / "tasks" / place
    work.parent.mkdir(parents=True, exist_ok=True)
    work.write_text("work", encoding="utf-8")
    before = (outputs.parent / "tasks/manifest.json").read_text(encoding="utf-8")
    with pytest.raises(DataError, match="would remove it: move it, or name another output_dir") as caught:
        make(outputs, seed=7)
    assert caught.value.file == work and work.read_text(encoding="utf-8") == "work"
    assert (outputs.parent / "tasks/manifest.json").read_text(encoding="utf-8") == before


def test_passages_are_asked_for_only_where_the_taxonomy_reads_them(outputs: Path) -> None:
    rows = [{"id": "a", "question": "Why?", "outputs": ["So."]}]
    outputs.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    types = {"Rude": {}}
    tone = Taxonomy("tone", {"tone": {"types": types}}, preferences=False)
    (found,) = make(outputs, taxonomy=tone).items.values()
    assert found.passages == ()
    reading = [
        Taxonomy("a", {"tone": {"types": types, "reads_passages": True}}),
        Taxonomy("b", {"tone": {"types": {"Rude": {"needs_evidence": True}}}}),
        Taxonomy("c", {"tone": {"types": types}}, missing={"Step": {}}),
    ]
    for taxonomy in reading:
        with pytest.raises(DataError, match="record 0.*passages.*missing"):
            make(outputs, "again", taxonomy=taxonomy)
    assert not (outputs.parent / "again").exists()
