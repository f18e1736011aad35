"""Gold answers in the place of sampled ones."""

import json
from pathlib import Path
from typing import Any

import pytest

from finegrained_lab.experiments.factworld.gold import WriteGoldAnswers
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.outputs import read_outputs
from finegrained_rlhf.feedback.reading import write_examples
from finegrained_rlhf.feedback.records import QAExample

ROW: dict[str, Any] = {
    "id": "fw-1",
    "question": "How wide?",
    "text": "question: How wide? context: wikipage: A lake text: It is wide.",
    "passages": [["A lake", "It is wide.", "It is cold."]],
    "answer": ["3 km."],
    "outputs": ["3 km 🙂\u2028line", ""],
}


def test_gold_answers_as_outputs(tmp_path: Path) -> None:
    passages = (Passage("", "A lake", ("It is wide.",)),)
    asked = QAExample("1", "How wide?", "How wide? A lake.", ("3 km.", "3000 m."), passages)
    write_examples(tmp_path / "asked.json", [asked])
    rows = json.loads((tmp_path / "asked.json").read_text(encoding="utf-8"))
    (tmp_path / "both.json").write_text(json.dumps([*rows, {**rows[0], "answer": []}]), encoding="utf-8")
    WriteGoldAnswers(str(tmp_path / "asked.json"), str(tmp_path / "gold.jsonl")).run()
    (record,) = read_outputs(tmp_path / "gold.jsonl")
    assert record.outputs == ("3 km.",) and record.passages == passages
    with pytest.raises(DataError, match=r"both\.json.*record 1.*answer"):
        WriteGoldAnswers(str(tmp_path / "both.json"), str(tmp_path / "none.jsonl")).run()
    assert not (tmp_path / "none.jsonl").exists()
