"""Texts with labels or scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.feedback.labelled_texts import LabelledText, labels_of, read_labelled_texts


def test_rows_have_a_label_or_a_score_or_both(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"id": "a", "text": "one", "label": "toxic"},
        {"text": "two", "score": 0.25, "other": 7},
        {"text": "three", "label": "mild", "score": 1},
    ]
    write_jsonl(tmp_path / "texts.jsonl", rows)
    found = read_labelled_texts(tmp_path / "texts.jsonl")
    assert found == [
        LabelledText("a", "one", "toxic"),
        LabelledText("record-1", "two", None, 0.25),
        LabelledText("record-2", "three", "mild", 1.0),
    ]
    labels = labels_of(found, None)
    assert labels == ("mild", "toxic")
    assert [text.shares(labels) for text in found] == [(0.0, 1.0), (0.75, 0.25), (0.0, 1.0)]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"label": "a"}, "text"),
        ({"text": "x"}, "expected a label or a score"),
        ({"text": "x", "score": 2}, "expected a number from 0 to 1, got 2"),
        ({"text": "x", "score": True}, "expected a number from 0 to 1"),
        ({"text": "x", "label": ""}, "label"),
        ({"text": "x", "label": "a", "id": "first"}, "occurs twice"),
    ],
)
def test_what_is_no_labelled_text_is_named(tmp_path: Path, row: dict[str, Any], problem: str) -> None:
    write_jsonl(tmp_path / "texts.jsonl", [{"id": "first", "text": "y", "label": "a"}, row])
    with pytest.raises(DataError, match=problem) as raised:
        read_labelled_texts(tmp_path / "texts.jsonl")
    assert "texts.jsonl" in str(raised.value) and "record 1" in str(raised.value)


def test_files_without_texts(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(DataError, match="no record"):
        read_labelled_texts(tmp_path / "empty.jsonl")


def test_labels_belong_to_the_texts() -> None:
    texts = [LabelledText("a", "x", "toxic"), LabelledText("b", "y", None, 0.5)]
    assert labels_of(texts, ["mild", "toxic"]) == ("mild", "toxic")
    with pytest.raises(ConfigError, match="two different ones or more, got toxic"):
        labels_of(texts, None)
    with pytest.raises(ConfigError, match="'toxic', which is none of a, b"):
        labels_of(texts, ["a", "b"])
    with pytest.raises(ConfigError, match="scores are for two classes, got toxic, b, c"):
        labels_of(texts, ["toxic", "b", "c"])
    with pytest.raises(ConfigError, match="two different"):
        labels_of(texts, ["toxic", "toxic"])
