"""Sets of snippets by scores: the rule, and the table on a world of one hotel."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from finegrained_lab.experiments.dialki.snippet_sets import Rule, choose_rule
from finegrained_lab.experiments.dialki.track import Dstc11TrackTable
from finegrained_lab.published.dialogues.dstc11 import dstc11_part
from finegrained_lab.published.dialogues.dstc11_track import Snippet, read_labels
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.dialogue.records import Turn

SENTENCES = ("The pool is cold.", "Breakfast was great.", "The pool is deep, and cold too.")


def snippet(number: int) -> Snippet:
    return Snippet(("hotel", "1"), ("review", str(number), "0"))


def test_a_rule_by_hand() -> None:
    scores = {snippet(0): 2.0, snippet(1): 0.0, snippet(2): 1.0}
    assert Rule(0.5, 5)(scores) == {snippet(0), snippet(2)} and Rule(0.6, 5)(scores) == {snippet(0)}
    assert Rule(0.3, 1)(scores) == {snippet(0)} and Rule(0.3, 5)({}) == frozenset()
    assert Rule(0.3, 5)({snippet(0): 0.0}) == frozenset()  # what scores nothing is never named
    needed = frozenset({snippet(0), snippet(2)})
    assert choose_rule([(needed, scores)]) == Rule(0.5, 2)  # of the rules that give both, the smallest


@pytest.fixture
def data(tmp_path: Path) -> Path:
    reviews = {str(i): {"sentences": {"0": words}} for i, words in enumerate(SENTENCES)}
    logs, labels = [], []
    for i in range(60):
        turns = [("U", f"Hello from guest {i} of the Inn."), ("S", "Yes?"), ("U", "How cold is the pool?")]
        logs.append([{"speaker": speaker, "text": text} for speaker, text in turns])
        wanted = [{"domain": "hotel", "entity_id": 1, "doc_type": "review", "doc_id": d, "sent_id": 0} for d in (0, 2)]
        labels.append({"target": True, "response": "Cold.", "knowledge": wanted} if i % 3 else {"target": False})
    content = {"logs": logs, "labels": labels, "knowledge": {"hotel": {"1": {"name": "THE INN", "reviews": reviews}}}}
    for name, value in content.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    return tmp_path


def test_rows_answers_and_page(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers, output = tmp_path / "answers", tmp_path / "track.json"
    result = Dstc11TrackTable(
        str(output), "the command", data=str(data), answers=str(answers), chosen="On train."
    ).run()
    rows = {(row["system"], row["entities"]): row for row in result["rows"]}
    assert {system for system, _ in rows} == {
        "bm25", "bm25_porter", "bm25_snowball", "one_needed_snippet", "all_of_the_entities"
    }  # fmt: skip
    assert (
        rows["bm25_porter", "matched"]["selection_exact_match"] == rows["bm25_porter", "labels"]["selection_f1"] == 1.0
    )
    assert rows["one_needed_snippet", "labels"]["selection_recall"] == 0.5
    assert rows["bm25_porter", "labels"]["first_right"] == 1.0
    assert rows["all_of_the_entities", "labels"]["selection_precision"] == pytest.approx(2 / 3)
    dev = [i for i in range(60) if dstc11_part((Turn("user", f"Hello from guest {i} of the Inn."),)) == "dev" and i % 3]
    assert result["turns"]["dev"] == len(dev) and result["entities_matched"] == 1.0
    assert len(read_labels(answers / "bm25_porter_matched.json")) == len(dev)
    page = output.with_suffix(".md").read_text()
    assert "the track's baseline 0.391 and 0.789" in page and read_json(output)["rows"] == result["rows"]
    capsys.readouterr()
