"""Edits as span feedback: categories by rule, nothing lost on the way, and labels that a reward model can learn."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.core.generation.protocol import words_and_marks
from finegrained_rlhf.core.generation.wrappers import ScriptedGenerator
from finegrained_rlhf.feedback.reading import read_feedback
from finegrained_rlhf.feedback.records import SpanError
from finegrained_rlhf.feedback.taxonomy import Taxonomy
from finegrained_rlhf.personalization import EditsToFeedback, NoLearning, UserMemory
from finegrained_rlhf.personalization.span_feedback import edit_errors
from reward_models.kinds import PREFERENCE, SegmentKind

ROOT = Path(__file__).parents[2]


def words_after(draft: str, errors: Sequence[SpanError]) -> list[str]:
    """The words and marks of the edited text, from the draft and its marks alone."""
    text, at = "", 0
    for error in errors:
        how, _, new = (error.explanation or "").partition(": ")
        kept = error.end if how == "added after it" else error.start
        text += f"{draft[at:kept]} {new} "
        at = kept if error.error_type == "missing" else error.end
    return words_and_marks(text + draft[at:])


def marked(draft: str, edited: str) -> list[tuple[str, str, str | None]]:
    return [(draft[e.start : e.end], e.error_type, e.explanation) for e in edit_errors(draft, edited)]


def test_the_rules() -> None:
    assert marked("The big red dog ran.", "The dog ran.") == [("big red", "irrelevant", None)]
    assert marked("The red dog ran.", "The blue dog ran.") == [("red", "wrong", "replaced by: blue")]
    assert marked("The dog ran.", "The dog ran home, alone.") == [("ran", "missing", "added after it: home, alone")]
    assert marked("Dogs run.", "All dogs run.") == [("Dogs", "wrong", "replaced by: All dogs")]
    assert marked("dogs run", "All dogs run") == [("dogs", "missing", "added before it: All")]
    assert marked("It is so.", "It  is\nso.") == [] == marked("It is so.", "It is so.")
    assert marked("It is so.", "") == [("It is so.", "irrelevant", None)]
    assert [kind for _, kind, _ in marked("a", "x a y")] == ["missing", "missing"]
    for blank in ("", " \n"):
        with pytest.raises(ValueError):
            edit_errors(blank, "a")


texts = st.lists(st.sampled_from(["a", "b", "c", "Dog", ",", ".", "\n", "  "]), max_size=12).map(" ".join)


@given(texts.filter(lambda text: bool(text.strip())), texts)
def test_nothing_is_lost(draft: str, edited: str) -> None:
    errors = edit_errors(draft, edited)
    assert words_after(draft, errors) == words_and_marks(edited)
    assert all(draft[error.start : error.end].strip() for error in errors)
    spans = [error for error in errors if error.error_type != "missing"]
    assert all(left.end <= right.start for left, right in zip(spans, spans[1:], strict=False))


def taxonomy() -> Taxonomy:
    values = yaml.safe_load((ROOT / "conf/taxonomy/edits.yaml").read_text(encoding="utf-8"))
    del values["_target_"]
    return Taxonomy(**values)


EDITS = [
    {"context": "Dogs", "draft": "The red dog ran. It was late.", "edited": "The blue dog ran. It was late."},
    {"context": "Cats", "draft": "The cat slept.", "edited": "The cat slept."},
    {"context": "Birds", "draft": "Birds, of course, sing. They fly.", "edited": "Birds sing. They fly high."},
    {"context": "Nothing", "draft": " ", "edited": "Something."},
]


def test_a_file_of_edits_becomes_feedback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_jsonl(tmp_path / "edits.jsonl", EDITS)
    records = EditsToFeedback(str(tmp_path / "feedback.json"), data=str(tmp_path / "edits.jsonl")).run()
    assert "3 records" in (said := capsys.readouterr().out) and "without a word: 1" in said
    read = read_feedback(tmp_path / "feedback.json", taxonomy())
    assert read == records
    for record, edit in zip(read, EDITS, strict=False):
        assert record.feedback is not None and record.feedback.corrected_prediction == edit["edited"]
        assert words_after(record.predictions[0], record.feedback.errors) == words_and_marks(edit["edited"])
    again = EditsToFeedback(str(tmp_path / "again.json"), data=str(tmp_path / "edits.jsonl")).run()
    assert again == records


def lacks_words(text: str, of: str) -> bool:
    """Whether it is a text out of which a run of words was cut."""
    words, whole = words_and_marks(text), words_and_marks(of)
    return any(words == whole[:n] + whole[len(whole) - len(words) + n :] for n in range(len(words) + 1))


def test_hindsight_says_what_texts_that_lack_words_need(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "edits.jsonl", EDITS)
    keys: dict[str, Any] = {"data": str(tmp_path / "edits.jsonl"), "hindsight": 2}
    records = EditsToFeedback(str(tmp_path / "feedback.json"), **keys).run()
    assert read_feedback(tmp_path / "feedback.json", taxonomy()) == records
    for edit in EDITS[:3]:
        own = {record.predictions[0]: record for record in records if record.question == edit["context"]}
        assert {edit["draft"], edit["edited"]} <= own.keys()
        shorter = own.keys() - {edit["draft"], edit["edited"]}
        assert shorter and all(
            lacks_words(text, edit["draft"]) or lacks_words(text, edit["edited"]) for text in shorter
        )
        for text, record in own.items():
            assert record.feedback is not None and bool(record.feedback.errors) == (text != edit["edited"])
            assert words_after(text, record.feedback.errors) == words_and_marks(edit["edited"])
    others = EditsToFeedback(str(tmp_path / "others.json"), **keys, seed=1).run()
    assert others != records and len({record.id for record in records}) == len(records)


def test_an_edited_text_is_preferred_to_its_draft(tmp_path: Path) -> None:
    edits = [*EDITS, {"context": "Gone", "draft": "All of it.", "edited": ""}]
    write_jsonl(tmp_path / "edits.jsonl", edits)
    keys: dict[str, Any] = {"data": str(tmp_path / "edits.jsonl"), "hindsight": 1}
    records = EditsToFeedback(str(tmp_path / "feedback.json"), **keys, preferences=True).run()
    assert read_feedback(tmp_path / "feedback.json", taxonomy()) == records
    alone = EditsToFeedback(str(tmp_path / "alone.json"), **keys).run()
    assert [replace(record, predictions=record.predictions[:1], preferences=()) for record in records] == alone
    compared = PREFERENCE.pairs(records, Pieces()).pairs
    edited = {edit["context"]: edit["edited"] for edit in edits}
    assert {pair.better_text for pair in compared} == {edited["Dogs"], edited["Cats"], edited["Birds"]}
    assert {EDITS[0]["draft"], EDITS[2]["draft"]} < {pair.worse_text for pair in compared}
    assert all(pair.worse_text != pair.better_text for pair in compared)


class Pieces:
    """Cuts after full stops, and after commas too."""

    def sentences(self, text: str) -> list[tuple[int, int]]:
        return [match.span() for match in re.finditer(r"[^\s.][^.]*\.", text)]

    def sub_sentences(self, text: str) -> list[tuple[int, int]]:
        return [match.span() for match in re.finditer(r"[^\s.,][^.,]*[.,]", text)]


def test_a_reward_model_gets_labels_of_it(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "edits.jsonl", EDITS)
    records = EditsToFeedback(str(tmp_path / "feedback.json"), data=str(tmp_path / "edits.jsonl")).run()
    marks = taxonomy()
    found = {}
    for name, category in marks.categories.items():
        kind = SegmentKind.of(category, marks)
        found[name] = [kind.labels(record, Pieces()).labels for record in records]
    assert found["missing"] == [(0, 0), (0,), (0, 1)]  # by sentence: "They fly." lacks something
    assert sum(found["wrong"][0]) == 1 and found["wrong"][0][0] == 1 and not any(found["wrong"][1] + found["wrong"][2])
    assert sum(found["irrelevant"][2]) >= 1 and found["irrelevant"][2][-1] == 0 and not any(found["irrelevant"][1])


def test_the_events_of_a_memory_become_feedback(tmp_path: Path) -> None:
    memory = UserMemory(tmp_path / "users.db", durable=False)
    learner = NoLearning(memory, ScriptedGenerator(lambda prompt: "The red dog ran."))
    for user in ("ada", "bob"):
        draft = learner.respond(user, "Dogs", key="one")
        for edited in ("A dog.", f"The dog of {user} ran."):  # of the edits of a draft the latest
            learner.observe_edit(user, "Dogs", draft, edited)
    memory.close()
    keys = {"memory": str(tmp_path / "users.db")}
    (record,) = EditsToFeedback(str(tmp_path / "ada.json"), **keys, users=["ada"]).run()
    assert record.question == "Dogs" and record.feedback is not None
    assert record.feedback.corrected_prediction == "The dog of ada ran." and "ada" not in record.id
    assert len(EditsToFeedback(str(tmp_path / "both.json"), **keys, users=["ada", "bob"]).run()) == 2
    with pytest.raises(DataError, match="no such user"):
        EditsToFeedback(str(tmp_path / "x.json"), **keys, users=["eve"]).run()
    with pytest.raises(DataError):
        EditsToFeedback(str(tmp_path / "x.json"), memory=str(tmp_path / "none.db"), users=["ada"]).run()
    assert not (tmp_path / "none.db").exists() and not (tmp_path / "x.json").exists()


def test_only_those_who_allowed_training_are_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    memory = UserMemory(tmp_path / "users.db", durable=False)
    learner = NoLearning(memory, ScriptedGenerator(lambda prompt: "The red dog ran."))
    for user in ("ada", "bob", "eve"):
        learner.observe_edit(user, "Dogs", learner.respond(user, "Dogs"), f"The dog of {user} ran.")
    memory.set_consent("ada", store=True, train=True)
    memory.set_consent("bob", store=True, train=False)
    memory.close()
    keys = {"memory": str(tmp_path / "users.db")}
    records = EditsToFeedback(str(tmp_path / "all.json"), **keys, users=["ada", "bob", "eve"]).run()
    texts = [record.feedback.corrected_prediction for record in records]
    assert texts == ["The dog of ada ran.", "The dog of eve ran."]  # of eve no decision is recorded
    said = capsys.readouterr().out
    assert "not allowed training: 1" in said and "bob" not in said + (tmp_path / "all.json").read_text()
    with pytest.raises(DataError, match="not allowed training: 1"):
        EditsToFeedback(str(tmp_path / "none.json"), **keys, users=["bob"]).run()
    assert not (tmp_path / "none.json").exists()


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="list of names"):  # not letter by letter
        EditsToFeedback("out.json", memory="b", users="ada")
    for wrong in ({}, {"data": "a", "memory": "b", "users": ["c"]}, {"memory": "b"}, {"data": "a", "users": ["c"]}):
        with pytest.raises(ConfigError):
            EditsToFeedback("out.json", **wrong)
    for rows in ([{"context": "a", "draft": "b"}], [EDITS[3]], [{**EDITS[0], "context": ""}]):
        write_jsonl(tmp_path / "edits.jsonl", rows)
        with pytest.raises(DataError):
            EditsToFeedback(str(tmp_path / "out.json"), data=str(tmp_path / "edits.jsonl")).run()
