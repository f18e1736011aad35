"""Taxonomies: the default and its file, what cannot be one, and records of other tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.feedback.reading import load_feedback, read_feedback, write_feedback
from finegrained_rlhf.feedback.records import ranking_preferences
from finegrained_rlhf.feedback.taxonomy import QA_FEEDBACK, Taxonomy
from finegrained_rlhf.launch.configurations import conf_directories
from finegrained_rlhf.text.segmentation import SpacySegmenter
from reward_models.data.examples import LabelSettings, RewardExample, weighted
from reward_models.data.inspection import inspect_feedback
from reward_models.kinds import SegmentKind, kinds_of
from reward_models.record import RewardModelRecord

MAILS: dict[str, Any] = {
    "name": "mails",
    "categories": {
        "tone": {"types": {"Rude": {"description": "Blames."}, "Stiff": None}},
        "steps": {"density": "own", "separator": "\n", "types": {"Wrong": {}}, "hidden_by": ["tone"]},
    },
    "correction": False,
}
MAD = {"errors": [{"error type": "Mad", "start": 0, "end": 3}], "missing-info": []}
TEXT = "You should have read the rules.\nSend it back.\n\nWait."


def row(**changes: Any) -> dict[str, Any]:
    errors = [{"error type": "Rude", "start": 0, "end": 31}, {"error type": "Wrong", "start": 32, "end": 36}]
    made = {
        "question": "Late?",
        "passages": [],
        "prediction 1": TEXT,
        "prediction 2": "Sorry.",
        "feedback": {"errors": errors, "missing-info": []},
    }
    return {**made, **changes}


def read(directory: Path, *rows: dict[str, Any], taxonomy: Taxonomy | None = None) -> list[Any]:
    (directory / "f.json").write_text(json.dumps(rows), encoding="utf-8")
    return read_feedback(directory / "f.json", taxonomy or Taxonomy(**MAILS))


@pytest.mark.parametrize(
    "path",
    sorted(path for directory in conf_directories() for path in directory.glob("taxonomy/*.yaml")),
    ids=lambda path: path.stem,
)
def test_files_of_taxonomies_bind_with_keys_and_colours_of_their_own(path: Path) -> None:
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert values.pop("_target_") == "finegrained_rlhf.feedback.Taxonomy" and values["name"] == path.stem
    made = Taxonomy(**values)
    types = [*made.error_types.values(), *made.missing.values()]
    assert len({one.key for one in types}) == len(types) == len({one.colour for one in types})
    if path.stem == "qa_feedback":
        assert made == QA_FEEDBACK
    assert kinds_of(made)


def test_what_is_given_as_plain_values_becomes_what_is_declared() -> None:
    made = Taxonomy(**MAILS)
    assert list(made.error_types) == ["Rude", "Stiff", "Wrong"] and made.error_types["Stiff"].label == "Stiff"
    assert [one.key for one in made.error_types.values()] == ["1", "2", "3"]
    assert made.rank("Wrong") == 1 and made.category_of("Rude").name == "tone"
    assert Taxonomy(**json.loads(json.dumps(MAILS))) == made
    assert list(kinds_of(made)) == ["tone", "steps", "preference"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"name": "my mails"}, "needs a name of letters"),
        ({"categories": {}, "preferences": False}, "nothing is asked"),
        ({"categories": {"tone": {"types": {}}}}, "expected at least one type"),
        ({"categories": {"tone": {"types": {"A": {}}, "colour": "red"}}}, "categories.tone: unknown key colour"),
        ({"categories": {"tone": {"types": {"A": {"colour": "red"}}}}}, "expected #rrggbb"),
        ({"categories": {"tone": {"types": {"A": {"key": "x"}, "B": {"key": "x"}}}}}, "a key is one character"),
        ({"categories": {"a": {"types": {"X": {}}}, "b": {"types": {"X": {}}}}}, "may be named once"),
        ({"categories": {"a": {"types": {"X": {}}, "density": "word"}}}, "density must be one of"),
        ({"categories": {"a": {"types": {"X": {}}, "density": "own"}}}, "density own needs one"),
        ({"categories": {"a": {"types": {"X": {}}, "density": "own", "separator": "("}}}, "no regular expression"),
        ({"categories": {"a": {"types": {"X": {}}, "density": "own", "separator": "x*"}}}, "matches no characters"),
        ({"categories": {"a": {"types": {"X": {}}, "hidden_by": ["b"]}}}, "hidden_by names 'b'"),
    ],
)
def test_what_cannot_be_a_taxonomy(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Taxonomy(**{**MAILS, **change})


def test_a_category_with_the_name_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="no category may be named preference"):
        kinds_of(Taxonomy("t", {"preference": {"types": {"X": {}}}}))


def test_records_of_another_task_give_labels_of_its_categories(tmp_path: Path) -> None:
    (record,) = read(tmp_path, row())
    tone, steps = kinds_of(Taxonomy(**MAILS))["tone"], kinds_of(Taxonomy(**MAILS))["steps"]
    assert isinstance(tone, SegmentKind) and isinstance(steps, SegmentKind)
    assert tone.labels(record, SpacySegmenter("rules")).labels == (1, 0, 0)
    labels = steps.labels(record, SpacySegmenter("rules"))
    assert [TEXT[a:b] for a, b in labels.spans] == ["You should have read the rules.", "Send it back.", "Wait."]
    assert labels.labels == (None, 1, 0)
    report = inspect_feedback([record], SpacySegmenter("rules"), taxonomy=Taxonomy(**MAILS))
    assert report.span_types == {"Rude": 1, "Stiff": 0, "Wrong": 1} and report.missing_info_types == {}
    saved = json.loads(json.dumps(vars(RewardModelRecord.of(steps))))
    assert RewardModelRecord(**saved).definition == steps
    assert RewardModelRecord.of(kinds_of(QA_FEEDBACK)["factuality"]).own_kind is None


def test_everything_a_record_may_hold_comes_back(tmp_path: Path) -> None:
    feedback = {
        "errors": [
            {
                "error type": "Rude",
                "explanation": "blames",
                "start": 0,
                "end": 31,
                "evidence": [{"passage_id": 1, "sentence_id": [2]}],
                "annotators": ["ann", "ben"],
            }
        ],
        "missing-info": [],
        "corrected-prediction": "",
        "annotators": ["ann", "ben"],
        "dropped": [{"error type": "Stiff", "start": 32, "end": 45, "annotators": ["ben"]}],
    }
    rows = [
        row(passages=[["T", "a", "b"]], feedback=feedback, preference=[None]),
        row(feedback=None, ranking=[[2], [1]]),
        row(**{"feedback": None, "feedback 2": {"errors": [], "missing-info": []}, "question": "Other?"}),
    ]
    records = read(tmp_path, *rows)
    assert records[0].preferences == (None,) and records[1].preferences == (2,) and list(records[2].marked) == [1]
    write_feedback(tmp_path / "again.json", records)
    again = json.loads((tmp_path / "again.json").read_text())
    assert again[0] == rows[0]
    assert read_feedback(tmp_path / "again.json", Taxonomy(**MAILS)) == records
    columns = load_feedback(tmp_path / "again.json", Taxonomy(**MAILS)).column_names
    assert {"feedback 2", "preference"} <= set(columns) and "gold" not in columns


@pytest.mark.parametrize(
    ("change", "field", "problem"),
    [
        ({"feedback": MAD}, "feedback.errors[0].error type", "unknown"),
        ({"feedback 3": {**MAD, "errors": []}}, "feedback 3", "expected feedback on one of the predictions"),
        ({"ranking": [[1]]}, "ranking", "expected each of the 2 answers once"),
        ({"ranking": [[1], [2]], "preference": [0]}, "ranking", "got both"),
        ({"prediction 4": "x"}, "prediction 3", "missing field"),
        ({"feedback": None}, "feedback", "expected feedback on an answer or a preference"),
    ],
)
def test_a_record_that_cannot_be_is_named(change: dict[str, Any], field: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=problem) as caught:
        read(tmp_path, row(**change))
    assert caught.value.field == field


def test_rankings_say_what_preferences_say() -> None:
    assert ranking_preferences([[2], [0, 1]], 3) == (0, 2, 2)
    with pytest.raises(DataError, match="each of the 3 answers once"):
        ranking_preferences([[0], [1]], 3)


def test_labels_weigh_as_far_as_annotators_agree(tmp_path: Path) -> None:
    people = ["ann", "ben", "cleo"]
    feedback = {
        "errors": [{"error type": "Rude", "start": 0, "end": 31, "annotators": ["ann", "ben"]}],
        "missing-info": [],
        "annotators": people,
        "dropped": [{"error type": "Stiff", "start": 32, "end": 45, "annotators": ["cleo"]}],
    }
    (record,) = read(tmp_path, row(feedback=feedback))
    tone = kinds_of(Taxonomy(**MAILS))["tone"]
    assert isinstance(tone, SegmentKind)
    labels = tone.labels(record, SpacySegmenter("rules"))
    assert labels.labels == (1, 0, 0) and labels.agreement == pytest.approx((2 / 3, 2 / 3, 1.0))
    made = [RewardExample((), labels.labels, weights=labels.agreement), RewardExample((), (0,))]
    counted = weighted(made, by_agreement=True)
    every = [weight for example in counted for weight in example.weights]
    assert every == pytest.approx([w / (10 / 3 / 4) for w in (2 / 3, 2 / 3, 1, 1)])
    assert all(example.weights == () for example in weighted(made, by_agreement=False))
    assert LabelSettings(tone).kind is tone
