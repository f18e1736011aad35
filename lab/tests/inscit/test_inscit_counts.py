"""What a file of INSCIT holds, counted by hand, and its tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from inscit_toy import conversations, label, passage
from script_runs import run_script

from finegrained_lab.published.inscit.data import read_inscit
from finegrained_lab.published.inscit.inspection import InspectInscit, inscit_counts
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import write_json, write_jsonl


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_json(tmp_path / "dev.json", conversations())
    return tmp_path / "dev.json"


def test_counts_by_hand(file: Path) -> None:
    counts = inscit_counts(read_inscit(file))
    assert (counts["conversations"], counts["turns"], counts["labels"]) == (2, 4, 6)
    assert counts["turns_with_two_labels"] == 2 and counts["turns_without_gold"] == 1
    assert counts["turns_per_conversation"] == 2.0 and counts["labels_per_turn"] == 1.5
    assert counts["user_tokens"] == pytest.approx((6 + 3 + 5 + 5) / 4)  # full stops and question marks are tokens
    assert counts["passages_per_label"] == 1.0 and counts["distinct_passages_per_label"] == pytest.approx(5 / 6)
    assert (counts["distinct_passages"], counts["repeated_passages"], counts["outlines"]) == (3, 1, 1)
    assert counts["ids_with_blanks"] == 1 and counts["evidence_sizes"] == {"0": 2, "1": 3, "2": 1}
    assert counts["types"]["directAnswer"]["labels"] == 2
    assert counts["types"]["clarification"] == {"labels": 1, "share": 1 / 6, "tokens": 6.0, "passages": 2.0}
    two = counts["two_labels"]
    assert (two["turns"], two["type_differs"], two["evidence_differs_where_type_does"]) == (2, 1, 1)
    clarifications = counts["clarifications"]
    assert (clarifications["first_turns"], clarifications["first_turns_share"]) == (1, 1 / 3)
    assert (clarifications["after_clarification"], clarifications["after_clarification_share"]) == (0, 0.0)
    assert counts["continued"] == {"label_0": 1, "label_1": 1}
    assert counts["earlier"] == {
        "passages_per_turn": 2.0,
        "turns": 2,
        "turns_that_reuse": 1,
        "turns_that_reuse_share": 0.5,
    }
    assert counts["unknown_keys"] == {"turns.labels.extra": 1}


def test_a_long_passage_and_empty_shares_are_counted(tmp_path: Path) -> None:
    data = conversations()
    long = label("directAnswer", "Yes.", passage("Long:1", "word " * 385))
    data["top3_dial12"]["turns"][0]["labels"] = [long]
    write_json(tmp_path / "long.json", {"top3_dial12": data["top3_dial12"]})
    counts = inscit_counts(read_inscit(tmp_path / "long.json"))
    assert counts["long_passages"] == 1 and counts["two_labels"]["type_differs_share"] is None
    assert counts["earlier"]["passages_per_turn"] is None


def test_the_script_prints_json_of_one_file_and_tables_of_several(file: Path) -> None:
    done = run_script("inspect_inscit", f"data={file}", "format=json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads(json.dumps(inscit_counts(read_inscit(file))))
    done = run_script("inspect_inscit", f"data=[{file},{file}]")
    assert done.returncode == 0 and "Table 5.1" in done.stdout and "clarification" in done.stdout
    with pytest.raises(ConfigError, match="format: expected one of table, json"):
        InspectInscit("x", format="csv")  # type: ignore[arg-type]


def test_evidence_that_a_known_corpus_lacks_is_refused(file: Path, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "part.jsonl", [{"id": "Cheese:0", "text": "text"}])
    with pytest.raises(DataError, match="passage_id"):
        InspectInscit(str(file), "json", str(tmp_path / "part.jsonl")).run()
