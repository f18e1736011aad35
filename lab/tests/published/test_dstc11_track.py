"""DSTC11 track 5: the task's files, measures and entities, against cases worked by hand and the published files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from finegrained_lab.published.dialogues.dstc11_track import (
    EntityMatcher,
    Label,
    Snippet,
    read_labels,
    read_track,
    track_scores,
    write_labels,
)
from finegrained_rlhf.core.errors import DataError

HOTEL = ("hotel", "7")
A, B, C = (Snippet(HOTEL, ("review", "0", str(i))) for i in range(3))
FAQ = Snippet(HOTEL, ("faq", "3"))


def seeks(*snippets: Snippet) -> Label:
    return Label(True, frozenset(snippets))


NOTHING = Label(False)


def test_measures_by_hand() -> None:
    references = [seeks(A, B), seeks(A), seeks(FAQ), NOTHING, NOTHING]
    answers = [seeks(A, C), seeks(A), NOTHING, seeks(B), NOTHING]
    scores = track_scores(references, answers)
    assert scores["detection_precision"] == pytest.approx(2 / 3) and scores["detection_recall"] == pytest.approx(2 / 3)
    assert scores["selection_precision"] == pytest.approx(2 / 4)  # A, A of A, C, A, B
    assert scores["selection_recall"] == pytest.approx(2 / 4)  # of A, B, A, FAQ
    assert scores["selection_f1"] == pytest.approx(0.5)
    assert scores["selection_exact_match"] == pytest.approx(1 / 4)  # the last record names nothing and is not counted


def test_one_right_snippet_is_no_exact_match_of_two() -> None:
    scores = track_scores([seeks(A, B)], [seeks(A)])
    assert scores["selection_exact_match"] == 0.0 and scores["selection_precision"] == 1.0
    assert scores["selection_recall"] == 0.5 and scores["selection_f1"] == pytest.approx(2 / 3)
    assert set(track_scores([NOTHING], [NOTHING]).values()) == {0.0}


def test_a_file_of_answers_comes_back(tmp_path: Path) -> None:
    labels = [seeks(B, A, FAQ), NOTHING, seeks()]
    write_labels(tmp_path / "answers.json", labels)
    written = json.loads((tmp_path / "answers.json").read_text())
    assert written[0]["knowledge"][0] == {"domain": "hotel", "entity_id": 7, "doc_type": "faq", "doc_id": 3}
    assert written[0]["knowledge"][1]["sent_id"] == 0 and written[1] == {"target": False}
    assert read_labels(tmp_path / "answers.json") == labels
    twice = [{"target": True, "knowledge": [written[0]["knowledge"][0]] * 2, "response": "Yes."}]
    (tmp_path / "twice.json").write_text(json.dumps(twice))
    assert read_labels(tmp_path / "twice.json") == [Label(True, frozenset({FAQ}), "Yes.")]
    (tmp_path / "broken.json").write_text(json.dumps([{"target": "yes"}]))
    with pytest.raises(DataError, match=r"broken.json, record 0, field target: expected true or false, got 'yes'"):
        read_labels(tmp_path / "broken.json")


def test_entities_of_a_dialogue() -> None:
    names = {
        ("hotel", "0"): "A AND B GUEST HOUSE",
        ("hotel", "1"): "ROSA'S BED AND BREAKFAST",
        ("restaurant", "2"): "NANDOS",
        ("restaurant", "3"): "NANDOS CITY CENTRE",
        ("restaurant", "4"): "ASK RESTAURANT",
        ("restaurant", "5"): "RESTAURANT TWO TWO",
    }
    match = EntityMatcher(names)

    def found(*turns: str) -> set[str]:
        return {number for _, number in match(turns)}

    assert found("Is Rosas quiet?") == found("Tell me of Rosa's bed and breakfast.") == {"1"}
    assert found("Book Nandos City Centre.", "Is it loud?") == {
        "3"
    }  # the longer name; a turn without a name is passed over
    assert found("Rosa's or Nandos?", "A and B Guest House, or two two?") == {"0", "5"}  # the latest turn with a name
    assert found("May I ask you something?") == set() and found("The Ask Restaurant, please") == {"4"}


def test_the_published_files(shared_data: Path) -> None:
    """Counts of the files themselves, and that the labels as answers are right in everything."""
    track = read_track(shared_data / "dstc11_track5")
    assert len(track.turns) == 3300 and sum(turn.label.target for turn in track.turns) == 1692
    assert len(track.names) == 143 and sum(map(len, track.texts.values())) == 10_882
    labels = [turn.label for turn in track.turns]
    assert sum(len(label.snippets) for label in labels) == 6_931
    assert set(track_scores(labels, labels).values()) == {1.0}
    one = [Label(True, frozenset(sorted(label.snippets)[:1])) if label.target else label for label in labels]
    scores = track_scores(labels, one)
    assert scores["selection_exact_match"] == pytest.approx(0.086, abs=5e-4) and scores["selection_precision"] == 1.0
