"""The file of responses that a PPO run keeps: what is written is read back, and what is damaged is named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from properties import given, st

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.directory.samples import (
    OracleMark,
    SampleRecord,
    SampleSegment,
    SampleTokens,
    marks_path,
    read_marks,
    read_samples,
    sample_files,
    write_marks,
    write_samples,
)

TOKENS = SampleTokens([4, 9, 9], {"kl": [0.0, 0.5, -0.25], "value": [1.0, 1.0, 1.0]})
SAMPLE = SampleRecord(
    "p1",
    2,
    "a question",
    "Yes, no <",
    [SampleSegment("a", 0, 4, 1.0, 0.5, 0, 1.0), SampleSegment("b", 0, 9, -2.0, -1.0)],
    TOKENS,
)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    plain = SampleRecord("p2", 0, "", "")
    write_samples(tmp_path / "step_1.jsonl", [SAMPLE, plain])
    read = read_samples(tmp_path / "step_1.jsonl")
    assert read == [SAMPLE, SampleRecord("p2", 0, "", "", [], None)]
    shared = replace(SAMPLE, tokens=replace(TOKENS, shares={"a": [0.5, 0.0, -1.0], "baseline": [0.0, 0.0, 1.0]}))
    write_samples(tmp_path / "step_2.jsonl", [shared])
    assert read_samples(tmp_path / "step_2.jsonl") == [shared]
    assert read[0].totals("a") == (1.0, 0.5) and read[0].total == -0.5 and read[0].of("c") == []


def test_the_line_of_a_sample_by_hand() -> None:
    assert json.loads(json.dumps(SAMPLE.row())) == {
        "id": "p1",
        "prompt": "a question",
        "sample": 2,
        "response": "Yes, no <",
        "segments": [
            {"component": "a", "start": 0, "end": 4, "token": 0, "raw": 1.0, "normalised": 1.0, "weighted": 0.5},
            {"component": "b", "start": 0, "end": 9, "raw": -2.0, "weighted": -1.0},
        ],
        "tokens": {"ends": [4, 9, 9], "kl": [0.0, 0.5, -0.25], "value": [1.0, 1.0, 1.0]},
    }


def test_marks_of_an_oracle_are_read_back_and_damage_is_named(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert read_marks(run) == {}
    marked = {("p1", "Yes, no <"): [OracleMark(0, 4, "irrelevant (C1)")], ("p1", ""): []}
    write_marks(run, marked)
    assert read_marks(run) == marked and sample_files(run) == {}
    for marks, said in (
        ("x", "field marks: expected a list"),
        ([{"start": 0, "end": 99, "label": "x"}], r"field marks\[0\]: expected 0 <= start"),
        ([{"start": 0, "end": 4}], r"field marks\[0\]\.label: missing field"),
    ):
        marks_path(run).write_text(json.dumps({"id": "p1", "response": "Yes, no <", "marks": marks}))
        with pytest.raises(DataError, match=rf"oracle_marks\.jsonl, record 0, {said}"):
            read_marks(run)


def test_files_of_training_and_of_validation_are_told_apart(tmp_path: Path) -> None:
    for name in ("step_10", "step_2", "validation_step_4", "scored_step_3", "step_x", "step_2.old"):
        (tmp_path / "samples").mkdir(exist_ok=True)
        (tmp_path / "samples" / f"{name}.jsonl").write_text("")
    run = RunDirectory(tmp_path)
    assert list(sample_files(run)) == [2, 10]
    assert sample_files(run, "validation_step") == {4: run.validation_samples_path(4)}
    assert sample_files(RunDirectory(tmp_path / "none")) == {}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"response": 3}, "field response: expected text, got int"),
        ({"id": None}, "field id: expected text"),
        ({"sample": "x"}, "field sample: expected a whole number"),
        ({"segments": {}}, "field segments: expected a list, got dict"),
        ({"segments": [3]}, r"field segments\[0\]: expected an object"),
        ({"segments": [{"component": "a", "start": 0, "end": True}]}, r"field segments\[0\]: expected 0 <= start"),
        ({"segments": [{"component": "a", "start": 0, "end": 4}]}, r"field segments\[0\]\.raw: missing field"),
        (
            {"segments": [{"component": "a", "start": 0, "end": 4, "raw": 1, "weighted": 1, "token": 3}]},
            r"field segments\[0\]\.token: expected a token from 0 to 2, got 3",
        ),
        ({"tokens": {"ends": [4, 99]}}, "field tokens.ends: expected a list of offsets from 0 to 9"),
        ({"tokens": {"ends": [4], "kl": [None]}}, "field tokens.kl: expected 1 finite numbers"),
        ({"shares": {"a": [0.5]}}, "field shares.a: expected 3 numbers, one a token, got 1"),
        ({"shares": [0.5]}, "field shares: expected an object, got list"),
        ({"tokens": {"ends": [4], "kl": 3}}, "field tokens.kl: expected 1 numbers, one a token, got None"),
    ],
)
def test_damaged_records_are_named(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    path = tmp_path / "step_1.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in (SAMPLE.row(), SAMPLE.row() | change)))
    with pytest.raises(DataError, match=rf"step_1\.jsonl, record 1, {said}"):
        read_samples(path)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=4))
def test_any_other_value_of_a_field_is_an_error_and_no_crash(value: Any) -> None:
    from finegrained_rlhf.runtime.directory import samples

    for key in ("id", "prompt", "response", "sample", "segments", "tokens"):
        try:
            samples._sample(SAMPLE.row() | {key: value})
        except DataError as error:
            assert error.field is not None and error.field.split(".")[0].split("[")[0] in (key, "segments", "tokens")
